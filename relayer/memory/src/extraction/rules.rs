//! Tables of the statements that are worth keeping, with their subjects. Data only; [`super::extract()`]
//! applies them.
//!
//! [`super::text::Pattern`] describes the pattern language. Order matters: the first match of a clause names
//! its slot.

use std::sync::LazyLock;

use super::text::Pattern;

/// A statement that is worth keeping.
#[derive(Debug)]
pub(super) struct Rule {
    /// Its form.
    pub pattern: Pattern,
    /// Key and value of its slot, with `$1`, `$2` for the captures.
    pub slot: Option<(&'static str, &'static str)>,
    /// Its worth.
    pub salience: f32,
    /// Label of the edge from the user to the entity in its first capture.
    pub edge: Option<&'static str>,
}

type Row = (&'static str, &'static str, f32, &'static str);

/// Statements that are facts anywhere, even as a clause of a question or a request. Columns: pattern;
/// `key=value` of the slot, or empty; worth; label of the edge, or empty.
const STRONG: &[Row] = &[
    // Past states come before present ones.
    ("i|we used to <x>", "", 0.5, ""),
    ("i @adverb? no longer @adverb? like|love|enjoy|eat|drink <x>", "user.likes:$1=no", 0.7, ""),
    ("i no longer work at|for <x>", "user.employer=not $1", 0.8, ""),
    ("i do not work at|for <x> anymore", "user.employer=not $1", 0.8, ""),
    ("i am no longer a|an? <@diet>", "user.diet=not $1", 0.9, ""),
    ("i am not a|an? <@diet>", "user.diet=not $1", 0.9, ""),
    ("i am no longer allergic to <x>", "user.allergic:$1=no", 0.9, ""),
    ("i am not @adverb? allergic to <x>", "user.allergic:$1=no", 0.9, ""),
    // Name.
    ("my name is|was <X>", "user.name=$1", 0.95, ""),
    ("my name is <w> $", "user.name=$1", 0.95, ""),
    ("my <w> name is <x>", "user.name:$1=$2", 0.9, ""),
    ("call|calls me <X>", "user.name=$1", 0.9, ""),
    ("i am called <X>", "user.name=$1", 0.9, ""),
    ("i go by <X>", "user.name=$1", 0.9, ""),
    ("my pronouns are <x>", "user.pronouns=$1", 0.9, ""),
    // Home.
    ("i|we @adverb? live|reside in|near|outside <x>", "user.lives_in=$1", 0.9, "lives_in"),
    (
        "i|we am|are @adverb? living|based|located|residing in|near|outside <x>",
        "user.lives_in=$1",
        0.9,
        "lives_in",
    ),
    ("i|we @adverb? @adverb? moved|relocated from .... to <x>", "user.lives_in=$1", 0.9, "lives_in"),
    (
        "i|we @adverb? @adverb? moved|relocated back|house|home|away? to <x>",
        "user.lives_in=$1",
        0.9,
        "lives_in",
    ),
    ("i am @adverb? originally? from <X>", "user.from=$1", 0.85, "from"),
    ("i come @adverb? originally? from <X>", "user.from=$1", 0.85, "from"),
    ("i grew up in|near|on <x>", "user.grew_up_in=$1", 0.8, "grew_up_in"),
    ("i was born @adverb? in <X>", "user.born_in=$1", 0.8, "born_in"),
    ("i was born ....", "", 0.8, ""),
    ("as someone|somebody who|with <x>", "", 0.7, ""),
    (
        "i|we have a|an|my|our .. wedding|interview|exam|appointment|funeral|trip|flight|date|surgery|operation|concert|recital ....",
        "",
        0.65,
        "",
    ),
    ("i am @adverb? on|in utc|gmt|pst|est|cet", "", 0.7, ""),
    // Work and school.
    ("i @adverb? work as a|an|the? <x>", "user.occupation=$1", 0.85, ""),
    ("i @adverb? work at|for <x>", "user.employer=$1", 0.85, "works_at"),
    ("i am @adverb? working at|for <x>", "user.employer=$1", 0.85, "works_at"),
    ("i @adverb? @adverb? started a? new? job|working at|with|for <x>", "user.employer=$1", 0.85, "works_at"),
    (
        "i @adverb? @adverb? got|accepted|took a|the new? job|position|offer at|with|from <x>",
        "user.employer=$1",
        0.85,
        "works_at",
    ),
    ("i @adverb? @adverb? got hired at|by <x>", "user.employer=$1", 0.85, "works_at"),
    ("i @adverb? @adverb? quit|left|lost my job|position", "user.employer=none", 0.85, ""),
    ("i was @adverb? laid off", "user.employer=none", 0.85, ""),
    ("i got @adverb? laid|fired off?", "user.employer=none", 0.85, ""),
    ("i am @adverb? unemployed|retired", "user.employer=none", 0.85, ""),
    ("i am a|an|the .... <@job>", "user.occupation=$1", 0.85, ""),
    ("as a|an .. <@job> i|myself", "user.occupation=$1", 0.8, ""),
    ("i am @adverb? studying <x>", "user.studies=$1", 0.8, ""),
    ("i @adverb? study <x>", "user.studies=$1", 0.8, ""),
    ("i @adverb? go|went to <X>", "", 0.6, ""),
    // Food and health facts that other people need to know.
    ("i am @adverb? @adverb? allergic to <x>", "user.allergic:$1=yes", 0.95, ""),
    ("i have a|an? .. <w> allergy", "user.allergic:$1=yes", 0.95, ""),
    ("i have an? allergy|allergies to <x>", "user.allergic:$1=yes", 0.95, ""),
    ("i am <w> intolerant", "user.intolerant:$1=yes", 0.95, ""),
    ("i am|became|went|turned|go @adverb? @adverb? a|an? <@diet>", "user.diet=$1", 0.9, ""),
    ("i have been a|an? <@diet>", "user.diet=$1", 0.9, ""),
    ("as a|an <@diet>", "user.diet=$1", 0.85, ""),
    ("i can not eat|drink|have|tolerate <x>", "user.eats:$1=no", 0.9, ""),
    ("i do not eat|drink <x>", "user.eats:$1=no", 0.85, ""),
    ("i @adverb? eat|drink <x>", "user.eats:$1=yes", 0.6, ""),
    ("i @adverb? stopped|quit eating|drinking|smoking", "", 0.75, ""),
    // Age and family.
    ("i am # years old", "user.age=$1", 0.85, ""),
    ("i am # and", "user.age=$1", 0.7, ""),
    ("i @adverb? @adverb? turned|turn # ", "user.age=$1", 0.8, ""),
    ("i am @adverb? happily|recently? <@marital>", "user.marital=$1", 0.85, ""),
    ("i|we @adverb? got <@marital>", "user.marital=$1", 0.85, ""),
    ("i|we am|are getting <@marital>", "", 0.85, ""),
    ("i am @adverb? dating|seeing <x>", "", 0.7, ""),
    (
        "i|we @adverb? have # .. kids|children|sons|daughters|siblings|brothers|sisters|grandchildren",
        "",
        0.85,
        "",
    ),
    ("i|we have a|an .... @relation", "", 0.8, ""),
    ("my .. @relation @be|just? turned? # ..", "", 0.75, ""),
    ("my <@single> @be called|named <X>", "user.$1.name=$2", 0.9, ""),
    ("my <@single> 's name is <X>", "user.$1.name=$2", 0.9, ""),
    ("<X> @be my <@single>", "user.$2.name=$1", 0.9, ""),
    ("<X> @be my .. @relation|@pet", "", 0.8, ""),
    ("my .. @relation 's name is <X>", "", 0.9, ""),
    ("my .. @relation @be called|named <X>", "", 0.9, ""),
    // Pets.
    ("my <@pet> @be called|named <X>", "pet.name:$1=$2", 0.9, ""),
    ("my <@pet> 's name is <X>", "pet.name:$1=$2", 0.9, ""),
    ("i|we @adverb? @adverb? have|got|adopted|own|rescued .... .. @pet", "", 0.8, ""),
    // Likes.
    ("my .. favourite <w> .. is|are|was <x>", "user.favourite:$1=$2", 0.85, ""),
    ("<X> is my .. favourite <w>", "user.favourite:$2=$1", 0.85, ""),
    ("my favourite is <x>", "", 0.7, ""),
    ("i do not @adverb? like|love|enjoy <x>", "user.likes:$1=no", 0.7, ""),
    ("i can not stand <x>", "user.likes:$1=no", 0.75, ""),
    ("i @adverb? @adverb? hate|dislike|detest|despise|loathe <x>", "user.likes:$1=no", 0.75, ""),
    ("i @adverb? @adverb? love|like|enjoy|adore|prefer <x>", "user.likes:$1=yes", 0.7, ""),
    ("i am @adverb? a|an? .. fan|lover of <x>", "user.likes:$1=yes", 0.7, ""),
    ("i am @adverb? into|obsessed|fond|crazy with|of|about? <x>", "user.likes:$1=yes", 0.7, ""),
    ("^ not a|an|much|really .. fan of <x>", "user.likes:$1=no", 0.65, ""),
    ("i am @adverb? interested in <x>", "", 0.6, ""),
    ("i have # .. years|months of experience|practice <x>", "", 0.7, ""),
    ("i am .. afraid|scared|terrified|frightened of <x>", "user.fears:$1=yes", 0.8, ""),
    // Attributes of "my" with one value.
    (
        "my <@attribute> is|was|will|has be|been? moved|changed|now? on|at|in|to|about? <x>",
        "user.my:$1=$2",
        0.75,
        "",
    ),
    (
        "my <w> <@attribute> is|was|will|has be|been? moved|changed|now? on|at|in|to|about? <x>",
        "user.my:$1 $2=$3",
        0.75,
        "",
    ),
    ("i|we @adverb? drive a|an <x>", "user.car=$1", 0.7, ""),
    ("i @adverb? speak <x>", "", 0.75, ""),
    (
        "i am @adverb? left-handed|right-handed|deaf|blind|colourblind|colorblind|pregnant|diabetic|autistic|dyslexic|adopted",
        "",
        0.85,
        "",
    ),
    ("i am left|color|colour|hard handed|blind|of", "", 0.85, ""),
    (
        "i was @adverb? diagnosed|promoted|hired|accepted|adopted|admitted|elected|robbed|raised|transferred",
        "",
        0.85,
        "",
    ),
    ("i @adverb? @adverb? got diagnosed|promoted|accepted|admitted", "", 0.85, ""),
    ("i have been|been? diagnosed|promoted|accepted|admitted", "", 0.85, ""),
    (
        "i have type|chronic|asthma|diabetes|epilepsy|adhd|ptsd|depression|arthritis|migraines|insomnia|celiac|anxiety",
        "",
        0.85,
        "",
    ),
    ("i suffer from <x>", "", 0.85, ""),
    // Other languages: name, home, work, food, family.
    ("ich heiße|heisse <x>", "user.name=$1", 0.95, ""),
    ("mein name ist <x>", "user.name=$1", 0.95, ""),
    ("ich wohne|lebe @adverb? .. in|bei|nahe <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("ich arbeite als <x>", "user.occupation=$1", 0.85, ""),
    ("ich arbeite .. bei|für <x>", "user.employer=$1", 0.85, "works_at"),
    ("ich bin .. allergisch gegen|auf <x>", "user.allergic:$1=yes", 0.95, ""),
    ("ich bin vegetarier|vegetarierin|veganer|veganerin|vegan", "", 0.9, ""),
    ("ich bin # jahre alt", "user.age=$1", 0.85, ""),
    (
        "mein|meine hund|katze|frau|mann|tochter|sohn|bruder|schwester|mutter|vater|freund|freundin heißt|ist|hat|wohnt|arbeitet",
        "",
        0.8,
        "",
    ),
    ("ich mag|liebe|hasse <x>", "", 0.7, ""),
    (
        "ich habe einen|eine|zwei|drei hund|katze|hunde|katzen|kinder|sohn|tochter|bruder|schwester|allergie",
        "",
        0.8,
        "",
    ),
    ("je m'appelle <x>", "user.name=$1", 0.95, ""),
    ("j'habite .. à|a|en|au|dans <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("je travaille .. chez|pour <x>", "user.employer=$1", 0.85, "works_at"),
    ("je travaille .. comme <x>", "user.occupation=$1", 0.85, ""),
    ("je suis allergique à|a|au|aux <x>", "user.allergic:$1=yes", 0.95, ""),
    ("je suis végétarien|végétarienne|vegan|végan", "", 0.9, ""),
    ("j'ai # ans", "user.age=$1", 0.85, ""),
    (
        "mon|ma chien|chat|chatte|femme|mari|fille|fils|frère|sœur|soeur|mère|père|ami|amie s'appelle|est|a|travaille|habite",
        "",
        0.8,
        "",
    ),
    ("j'aime|j'adore|j'ai|je .. déteste|horreur|aime <x>", "", 0.6, ""),
    ("me llamo <x>", "user.name=$1", 0.95, ""),
    ("mi nombre es <x>", "user.name=$1", 0.95, ""),
    ("yo? vivo .. en|cerca <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("trabajo como|de <x>", "user.occupation=$1", 0.85, ""),
    ("trabajo en|para <x>", "user.employer=$1", 0.85, "works_at"),
    ("soy alérgico|alérgica|alergico|alergica a|al <x>", "user.allergic:$1=yes", 0.95, ""),
    ("soy vegetariano|vegetariana|vegano|vegana|vegetariano", "", 0.9, ""),
    ("tengo # años", "user.age=$1", 0.85, ""),
    (
        "mi perro|perra|gato|gata|mujer|esposa|marido|esposo|hija|hijo|hermano|hermana|madre|padre|novia|novio se|es|tiene|vive|trabaja",
        "",
        0.8,
        "",
    ),
    ("me gusta|gustan|encanta|encantan <x>", "", 0.7, ""),
    ("mi chiamo <x>", "user.name=$1", 0.95, ""),
    ("vivo|abito a|in <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("sono allergico|allergica a|al|alle|agli|alla <x>", "user.allergic:$1=yes", 0.95, ""),
    ("lavoro come <x>", "user.occupation=$1", 0.85, ""),
    ("lavoro per|presso <x>", "user.employer=$1", 0.85, "works_at"),
    ("meu nome é <x>", "user.name=$1", 0.95, ""),
    ("me chamo <x>", "user.name=$1", 0.95, ""),
    ("moro|vivo em|no|na <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("sou alérgico|alérgica a|ao|à <x>", "user.allergic:$1=yes", 0.95, ""),
    ("ik heet <x>", "user.name=$1", 0.95, ""),
    ("ik woon in <x>", "user.lives_in=$1", 0.9, "lives_in"),
    ("ik werk bij|voor <x>", "user.employer=$1", 0.85, "works_at"),
    ("ik ben allergisch voor <x>", "user.allergic:$1=yes", 0.95, ""),
];

/// Statements that are worth keeping if the sentence is a statement and no exclusion matches.
const WEAK: &[Row] = &[
    ("i|we have|had|got|need .... .... @day", "", 0.6, ""),
    ("i|we will .... .... @day", "", 0.6, ""),
    ("i|we will @adverb? be in|at|near <X>", "", 0.6, ""),
    ("i|we .... .... on|every|each|next|this|last @day", "", 0.55, ""),
    ("^ been @adverb? a|an|in|at|to|with|@doing <x>", "", 0.6, ""),
    ("^ just|finally @past <x>", "", 0.55, ""),
    ("^ @past my|our|an|a <x>", "", 0.5, ""),
    ("i|we am|are @adverb? thinking|dreaming about|of @doing", "", 0.55, ""),
    ("i am more|kind|sort|kinda of? a|an <x>", "", 0.6, ""),
    (
        "put|offered|gave|hired|promoted|fired|prescribed|invited|accepted|rejected|adopted|raised|taught me|us <x>",
        "",
        0.55,
        "",
    ),
    ("i|we can only <x>", "", 0.55, ""),
    (
        "^ trying|training|studying|hoping|planning|saving|moving|getting|working to|for|on|in|up|as|at <x>",
        "",
        0.5,
        "",
    ),
    ("i would love|like|want to .... .... someday|eventually", "", 0.6, ""),
    ("i would love to <x> one day", "", 0.6, ""),
    ("i always|never|often|usually|easily get|have|need|lose|feel <x>", "", 0.5, ""),
    (
        "the|our meeting|wedding|appointment|exam|flight|party|interview|funeral|trip|concert|game|match|deadline|class|rehearsal is|was|has|got|starts|begins .... @day|#",
        "",
        0.5,
        "",
    ),
    (
        "the|our meeting|wedding|appointment|exam|flight|party|interview|funeral|trip|concert|deadline|class|rehearsal was|got|is @adverb? moved|postponed|cancelled|canceled|rescheduled <x>",
        "",
        0.5,
        "",
    ),
    (
        "^ dinner|lunch|breakfast|drinks|coffee|date|meeting|appointment|interview|exam|party|flight|drinks|brunch with|at|on|in|to <x>",
        "",
        0.5,
        "",
    ),
    ("^ my|our <w> <w> <w>", "", 0.4, ""),
    (
        "^ the|they|he|she|this .... raised|cut|cancelled|took|stole|broke|wants|moved|sold|closed my|our <w>",
        "",
        0.5,
        "",
    ),
    ("nach <X> gezogen|umgezogen", "", 0.6, ""),
    ("mijn hond|kat|vrouw|man|dochter|zoon|broer|zus|moeder|vader heet|is|heeft|woont|werkt", "", 0.7, ""),
    ("ich habe|hab ein|einen|eine|zwei|drei <x>", "", 0.5, ""),
    ("tengo un|una|dos|tres <x>", "", 0.5, ""),
    ("ho un|una|due|tre <x>", "", 0.5, ""),
    ("i|we will @adverb? be in|at|near <X>", "", 0.6, ""),
    ("^ just? met|visited|saw|bought|adopted|sold|broke|lost|quit my|our|an|a <x>", "", 0.55, ""),
    ("i|we have|need to .... my <w>", "", 0.5, ""),
    ("i|we @adverb? have a|an|two|three|four|five|six|several|many|some|no <x>", "", 0.6, ""),
    ("i|we @adverb? own|rent a|an|two|three|my|our <x>", "", 0.65, ""),
    ("i|we am|are @adverb? going|planning|hoping|expecting to <x>", "", 0.6, ""),
    (
        "i|we @adverb? @adverb? plan|hope|intend|aim|want|dream to|of @adverb? be|become|learn|visit|move|start|buy|travel|quit|lose|run|write|build|open|own|retire|get|have|go|study|see|climb|finish|teach|grow|adopt|raise|switch|leave|marry|apply|train|try|take|publish|stop",
        "",
        0.6,
        "",
    ),
    ("i would love|like to be|become|learn|visit|move|travel|retire|study|live", "", 0.55, ""),
    (
        "i|we am|are @adverb? @adverb? trying to lose|learn|quit|get|become|save|improve|stop|eat|sleep|run|cut|conceive|sell|buy|adopt|gain",
        "",
        0.6,
        "",
    ),
    ("i|we am|are @adverb? @adverb? @doing <x>", "", 0.6, ""),
    ("i|we have been @adverb? @doing|@past|married|together|in|at|to|with|feeling", "", 0.6, ""),
    ("i|we have|had? @adverb? @adverb? @past <x>", "", 0.6, ""),
    ("i|we @adverb? @adverb? @past <x>", "", 0.55, ""),
    ("i @adverb? @adverb? @habitual <x>", "", 0.55, ""),
    ("we @adverb? @adverb? live|have|work|play|celebrate|met|meet|go|call|own <x>", "", 0.55, ""),
    ("i usually|often|never|rarely|always|sometimes|normally <w>", "", 0.55, ""),
    (
        "i .... .... every|each|most day|morning|week|night|evening|year|month|@day|summer|winter",
        "",
        0.55,
        "",
    ),
    ("i was a|an|in|at|the|living|working|studying <x>", "", 0.5, ""),
    ("i am @adverb? @adverb? a|an|the <x>", "", 0.6, ""),
    (
        "i am @adverb? @adverb? worried|proud|excited|nervous|sad|happy|stressed|anxious|heartbroken about|of|for|that|because my|the|our <x>",
        "",
        0.55,
        "",
    ),
    ("i believe in <x>", "", 0.6, ""),
    ("i miss my|the|our <x>", "", 0.6, ""),
    ("i can not|@adverb? swim|drive|cook|see|hear|sleep|ride|read|walk|play|speak", "", 0.6, ""),
    ("my|our .. @relation|@pet <w> <w>", "", 0.65, ""),
    ("my|our .. @relation|@pet <w> $", "", 0.55, ""),
    (
        "my|our <w> .. @be|has|have|starts|ends|begins|got|broke|died|hurts|will|needs|burned|comes|arrives|leaves <x>",
        "",
        0.6,
        "",
    ),
    ("it is my <x>", "", 0.55, ""),
    ("@day is|'s my|our <x>", "", 0.6, ""),
    ("mine is <x>", "", 0.4, ""),
    ("there are # of us", "", 0.6, ""),
];

/// Matches of [`WEAK`] that are not worth keeping.
const EXCLUDED: &[&str] = &[
    "i am @adverb? @adverb? sorry|sure|confused|fine|good|ok|okay|wondering|curious|asking|looking|here|back|ready|done|stuck|guessing|aware|talking|referring|well|great|kidding|joking|hungry|bored|tired|full|lost",
    "i am not sure|certain|following|saying|asking|getting|seeing",
    "i am a|an|the bit|little|big|lot|human|bot|idiot|user|one",
    "i am @adverb? getting an|a|the|this|it|confused|errors|there|back|bored|tired|hungry|better|nothing|stuck",
    "i am @adverb? having trouble|problems|issues|difficulty",
    "i am @adverb? going to ask|say|try|be|bed|sleep|assume|use|need|think|go|guess|stop|check|read|copy|paste|test|do|look",
    "i am @adverb? working|reading|writing|taking|playing|running|going on|into|out|with? this|that|it|your|over",
    "i|we have|had|got a|an|no|some|another|few|the|two|one|few? .. question|questions|problem|problems|idea|ideas|issue|doubt|feeling|bug|error|request|favour|favor|suggestion|list|string|file|table|dataset|csv|clue|moment|minute|second|look|hunch|point|chance|choice|hard|good|great|nice|lovely|fun|blast|trouble|time",
    "i|we have|had|got to|it|this|that|your|you|them|there|what|where",
    "i|we have @adverb? tried|read|heard|noticed|checked|been been? told|wondering|trying|thinking|looking|meaning",
    "i|we @adverb? @past it|this|that|your|you|what|how|why|them|error|errors",
    "i|we @adverb? made|had a|an|the .. mistake|typo|error|point|guess",
    "i|we @adverb? took a|another look|peek",
    "i @adverb? read|saw|heard somewhere|that|about|online|an article",
    "i @adverb? wanted|started|decided to ask|know|say|check|see|understand|wonder|think",
    "i want to know|ask|understand|see|make|say|check",
    "i will be back|right|happy|glad|there|honest|fine",
    "i will try|let|think|see|check|get|ask|do|give|take|have|need",
    "i need to know|understand|ask|see|write|make|find|figure|convert|sort|parse|calculate|solve",
    "i @adverb? keep|take|make getting|it|this|that|sense|sure|your|note",
    "i would like|love to? know|see|hear|you|a|an|some|the|ask|understand",
    "my .. character|protagonist|hero|heroine|wizard|avatar|campaign|apologies|setup",
    "my .. question|questions|code|problem|point|program|function|script|guess|understanding|query|error|mistake|apologies|bad|prompt|request|message|input|output|idea|pleasure|essay|paragraph|sentence|document|draft|issue|computer|laptop|browser|file|app|internet|internet|god|goodness|first|last|next @be|has|will|does|comes",
    "i love|like|enjoy|hate|prefer|appreciate it|this|that|your|you|the way|how|these|those|them",
    "i never|always|often|sometimes|usually|rarely thought|knew|know|heard|understand|understood|said|wondered|wonder|think|forget|see|realised|realized",
    "^ just|finally saw|read|noticed|tried|heard|got|had|checked",
    "i|we @adverb? get|got it|that|this|what|the point|error",
];

/// Objects of a like that mean nothing without the sentence before.
pub(super) const EMPTY_VALUES: &[&str] = &[
    "it",
    "this",
    "that",
    "you",
    "your",
    "them",
    "these",
    "those",
    "how",
    "when",
    "what",
    "where",
    "the way",
    "to know",
    "to see",
    "to hear",
    "to understand",
    "to ask",
    "night",
    "home",
    "hours",
    "me",
    "us",
    "him",
    "her",
    "one",
    "both",
    "myself",
    "free",
];

/// A user's words to the persona: moments between the two (relationship layer).
const MOMENTS: &[&str] = &[
    "i @adverb? @adverb? love|adore|enjoy|like|liked|loved|enjoyed talking|chatting|speaking|our|these to|with|talks|chats|conversations|evenings|walks you?",
    "you are @adverb? my .. friend|favourite|confidant|confidante|love|rock|person|muse|mentor|partner|buddy|companion|hero",
    "i @adverb? trust you",
    "i @adverb? @adverb? miss|missed you|our",
    "i @adverb? @adverb? love you",
    "^ let us|'s call|name|always|promise <x>",
    "our .. song|place|joke|secret|word|ritual|game|promise|codeword|book|story|tradition|thing|nickname|film|star @be|will|has <x>",
    "i have never|not told anyone|anybody|you|a",
    "i never told anyone|anybody",
    "nobody|no knows|one this|about|knows but|except you",
    "between you and me",
    "between us",
    "you promised <x>",
    "you @adverb? remind|reminded me of <x>",
    "i will|am going? to? call you <X>",
    "i dreamed|dreamt about|of you",
    "i feel|felt @adverb? close|safe|understood|comfortable with|by|around you",
    "i @adverb? @adverb? like|love|hate|prefer|enjoy it? when|that|how|if you <x>",
    "you and i <x>",
    "you always|never|often|still|really know|make|cheer|help|listen|understand|calm|get|say|tease|surprise <x>",
    "i confess <x>",
    "i have a confession",
    "i have to confess <x>",
    "i owe you <x>",
    "we always|once|both|agreed|promised|talked|laughed <x>",
];

/// An assistant's statements about itself that are not moments: its nature, and its offers.
const NOT_TELLING: &[&str] = &[
    "i am @adverb? a|an|the? .. ai|assistant|model|program|bot|chatbot|language",
    "as an? ai|assistant|language",
    "i @adverb? do not have|possess|experience|feel access|the|feelings|personal|a|any|emotions|opinions",
    "i can|could|would|will|should|may|might|must @adverb? help|assist|suggest|recommend|be|try|explain|provide|give|show|say|do|answer|tell|need|add|look|write|make|have|happily|love|like",
    "i @adverb? suggest|recommend|understand|hope|think|see|apologise|apologize|appreciate|believe|guess|know|mean|wonder|agree|assume|need",
    "i am @adverb? @adverb? here|sorry|glad|happy|sure|able|unable|not|designed|programmed|trained|excited|proud|delighted|curious|afraid|thrilled|pleased",
    "i have|had @adverb? @adverb? listed|made|added|included|updated|noted|written|changed|prepared|created|found|provided|summarised|summarized|corrected|no|some|a few|suggestions",
    "i was @adverb? trained|created|designed|developed|made|built|programmed",
    "i love|like|enjoy that|your|how|helping|it|this",
    "i made the|a|some|these changes|list|plan|table|few|corrections",
];

fn compile(rows: &'static [Row]) -> Vec<Rule> {
    let rule = |&(pattern, slot, salience, edge): &Row| Rule {
        pattern: Pattern::new(pattern),
        slot: slot.split_once('='),
        salience,
        edge: (!edge.is_empty()).then_some(edge),
    };
    rows.iter().map(rule).collect()
}

fn patterns(rows: &[&str]) -> Vec<Pattern> {
    rows.iter().map(|row| Pattern::new(row)).collect()
}

/// The strong rules.
pub(super) static STRONG_RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| compile(STRONG));
/// The weak rules.
pub(super) static WEAK_RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| compile(WEAK));
/// The exclusions from the weak rules.
pub(super) static EXCLUSIONS: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns(EXCLUDED));
/// The moments.
pub(super) static MOMENT_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns(MOMENTS));
/// The exclusions from an assistant's statements about itself.
pub(super) static NOT_TELLING_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns(NOT_TELLING));
