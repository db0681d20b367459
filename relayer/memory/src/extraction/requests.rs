//! A user's requests about memory itself: not to keep something, to keep it, or to recall it. Data for the
//! [gate](super::gate()).

use std::sync::LazyLock;

use super::text::Pattern;

/// The user wants it not kept.
const OFF_RECORD: &[&str] = &[
    "^ do not .. remember|memorise|memorize|retain",
    "^ do not .. store|save|keep|record|log|note this|that|it|any|anything|what|my|these|our",
    "^ do not .. write|put this|that|it|any down|in",
    "^ do not .. make|take a|any notes|note|memory",
    "off the record",
    "^ forget|unremember $",
    "^ forget i|we .. said|told|mentioned|asked|wrote",
    "^ do not tell|mention this|that|it to|in any|anyone|memory|later",
    "^ forget|unremember that|this|it|what|everything|all|about|the|my",
    "^ forget|erase|delete|scrap|wipe .. everything|all|anything|memories .. i|we|you|about|told|said|know",
    "^ i do not want you to remember|store|save|keep|record|memorise|memorize",
    "^ i would rather|prefer you did? not|never remember|remembered|store|stored|save|saved|keep|kept|record",
    "no need to remember|store|save|keep|record",
    "should|must|need not be remembered|stored|saved|kept|recorded",
    "not for the record",
    "not to be remembered|stored|saved|kept|recorded",
    "^ never .. store|save|record|keep|memorise|memorize this|that|it|any|anything|what|my",
    "^ please? stop remembering|saving|storing|recording",
    "without remembering|saving|storing|recording",
    "nicht merken|speichern",
    "^ merk|merke|speicher|speichere .... nicht",
    "^ vergiss das|es|bitte|was|alles",
    "^ oublie|oubliez ça|cela|ce|tout|le",
    "^ ne te? retiens|retenez|souviens|enregistre|mémorise",
    "^ olvida|olvide|olvídalo|olvídate|borra eso|esto|lo|todo|que|de",
    "no lo|la|esto|eso recuerdes|guardes|recuerde|guarde",
    "no recuerdes|guardes esto|eso|nada|lo",
    "^ dimentica|dimenticare questo|quello|tutto|ciò",
    "^ não guarde|lembre|memorize|salve",
    "^ esqueça|esquece isso|tudo|o",
    "^ vergeet dit|dat|het|alles",
    "^ onthoud .... niet",
];

/// The user wants it kept.
const EXPLICIT: &[&str] = &[
    "^ remember that|this|my|me|i|we|our",
    "^ remember $",
    "^ do not forget|forgot that|this|my|i|we|our|me",
    "^ never forget that|my|i|we",
    "^ keep|bear in mind",
    "^ keep this|that in mind|memory",
    "^ save|store|note|record|memorise|memorize|log this|that|down",
    "^ note that|my|i",
    "^ make|take a|another mental? note",
    "^ add|save|put|write|commit this|that|it|my <x>",
    "^ for future|your reference|records|information|memory",
    "^ i want|need|would like you|to to|you remember|know|note|to",
    "for next|future time|reference|conversations|chats",
    "^ merk|merke dir|es|bitte",
    "^ denk|denke daran|dran",
    "^ bitte? merk|merken|behalte|notiere",
    "^ souviens-toi|souviens|retiens|note|rappelle toi|que|toi|bien",
    "^ recuerda|recuerde|anota|apunta que|esto|mi",
    "^ ricorda|ricordati|annota che|questo|di",
    "^ lembre|lembra|anote|anota que|se|disso",
    "^ onthoud dat|dit|mijn",
];

/// The user asks about earlier messages.
const RECAP: &[&str] = &[
    "what did|have we|i|you .. talk|talked|discuss|discussed|say|said|tell|told|cover|covered|mention|mentioned|decide|decided|agree|agreed|call|speak",
    "what were we|you|i talking|saying|discussing|doing|on",
    "what do you .. remember|know|recall",
    "do you .. remember|recall",
    "can|could you .. remember|recall",
    "^ remember when|how|what|who|where|why|whether|if <x>",
    "^ summarise|summarize|recap|sum",
    "summarise|summarize|recap our|this|the|what|everything|up .. conversation|chat|discussion|we|so|far|session",
    "a|quick summary|recap of our|this|what|the|everything",
    "remind me what|who|where|when|how|about|again|of",
    "where were we",
    "where did we leave|stop",
    "catch me up",
    "go over what|everything we|i",
    "what is my <x>",
    "who am i",
    "as i|we said|mentioned|told|discussed",
    "did i .... tell|say|mention",
    "have i .... told|said|mentioned",
];

fn compile(rows: &[&str]) -> Vec<Pattern> {
    rows.iter().map(|row| Pattern::new(row)).collect()
}

/// Compiled [`OFF_RECORD`].
pub(super) static OFF_RECORD_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| compile(OFF_RECORD));
/// Compiled [`EXPLICIT`].
pub(super) static EXPLICIT_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| compile(EXPLICIT));
/// Compiled [`RECAP`].
pub(super) static RECAP_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| compile(RECAP));
