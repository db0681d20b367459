//! The word lists that the rules share.

use std::{collections::HashSet, sync::OnceLock};

/// A set of words, written as one text with spaces between them.
pub(super) struct Words {
    source: &'static str,
    parsed: OnceLock<(Vec<&'static str>, HashSet<&'static str>)>,
}

impl Words {
    const fn new(source: &'static str) -> Self {
        Self { source, parsed: OnceLock::new() }
    }

    fn parsed(&self) -> &(Vec<&'static str>, HashSet<&'static str>) {
        self.parsed.get_or_init(|| (self.source.split(' ').collect(), self.source.split(' ').collect()))
    }

    /// All words, in order.
    pub(super) fn all(&self) -> &[&'static str] {
        &self.parsed().0
    }

    /// Whether the set contains a word in lower case.
    pub(super) fn contains(&self, word: &str) -> bool {
        self.parsed().1.contains(word)
    }
}

/// Family members, and other people in a person's life.
pub(super) static RELATIONS: Words = Words::new(
    "eldest youngest oldest hubby folks gf bf bff sis bro wife husband spouse partner fiance fiancee fiancé fiancée girlfriend boyfriend ex mother father \
     parents sister brother siblings twin son daughter kid kids child children baby toddler stepson \
     stepdaughter stepmother stepfather grandmother grandfather grandma grandpa granny grandson \
     granddaughter grandparents grandkids aunt uncle cousin niece nephew godson goddaughter friend \
     friends bestie roommate flatmate housemate neighbour neighbours boss manager colleague coworker \
     supervisor advisor teacher tutor coach trainer therapist doctor dentist landlord landlady nanny \
     babysitter accountant lawyer mentor mentee student team family in-laws",
);

/// Relations with one person at a time.
pub(super) static SINGLE: Words = Words::new(
    "wife husband spouse partner fiance fiancee fiancé fiancée girlfriend boyfriend mother father boss \
     manager supervisor advisor therapist dentist landlord landlady",
);

/// Animals that people keep.
pub(super) static PETS: Words = Words::new(
    "dog puppy pup cat kitten kitty hamster rabbit bunny parrot bird budgie canary horse pony goldfish \
     fish turtle tortoise snake lizard gecko ferret chicken chickens goat pig corgi poodle labrador \
     beagle dachshund terrier retriever shepherd pet",
);

/// Ways of eating.
pub(super) static DIETS: Words = Words::new(
    "vegan vegetarian pescatarian pescetarian flexitarian omnivore carnivore keto paleo kosher halal \
     gluten-free celiac coeliac",
);

/// Occupations that need no other word to name a job.
pub(super) static JOBS: Words = Words::new(
    "accountant actor actress analyst architect artist astronomer attorney baker barber barista bartender \
     biologist bookkeeper botanist builder butcher carpenter cartographer cashier chef chemist cleaner \
     coach composer consultant cook counselor dancer dentist designer developer director doctor driver \
     economist editor electrician engineer farmer firefighter fisherman florist freelancer gardener \
     geologist hairdresser historian journalist judge lawyer lecturer librarian lifeguard locksmith \
     machinist manager mechanic midwife model musician nanny nurse optician painter paralegal paramedic \
     pharmacist photographer physicist physiotherapist pilot plumber poet policeman postman potter \
     producer professor programmer psychologist publisher receptionist reporter researcher sailor \
     salesman scientist sculptor secretary singer soldier statistician student surgeon surveyor tailor \
     teacher therapist translator trucker tutor vet veterinarian waiter waitress welder writer zoologist \
     entrepreneur freshman sophomore undergrad",
);

/// Days and parts of time that a plan or an event has.
pub(super) static DAYS: Words = Words::new(
    "monday tuesday wednesday thursday friday saturday sunday tomorrow tonight yesterday weekend january \
     february march april june july august september october november december christmas easter summer \
     winter spring autumn fall month week year noon midnight morning evening afternoon birthday \
     anniversary thanksgiving semester mondays tuesdays wednesdays thursdays fridays saturdays sundays \
     weekends",
);

/// Attributes of "my …" that hold one value at a time.
pub(super) static ATTRIBUTES: Words = Words::new(
    "name nickname surname birthday birthplace address hometown nationality job occupation profession \
     employer age height weight timezone email mail phone number flight train appointment exam interview \
     deadline meeting wedding anniversary budget goal dream major degree university school car bike size \
     colour color star sign language hobby salary rent thesis dissertation due pronouns username handle \
     website company startup team band specialty office desk shift dose",
);

/// Words with a capital that are not names.
pub(super) static NOT_A_NAME: Words = Words::new(
    "i the a an my your our his her their it he she we you they this that these those and but or so if \
     when what who where why how which is are was were do does did can could will would should yes no ok \
     okay please thanks thank hi hello hey monday tuesday wednesday thursday friday saturday sunday \
     january february march april may june july august september october november december not just also \
     in on at to for from with by of as am pm there here then now today tomorrow yesterday well actually \
     because after before since while let us me be been have has had remember don ai english lol omg btw \
     fyi very really still never always last next every some any all one two three good great nice sorry \
     oh god sure maybe",
);

/// Words of small talk, without information.
pub(super) static SMALL_TALK: Words = Words::new(
    "'s not do can will am been how would hi hello hey heya hiya yo howdy greetings good morning evening afternoon night day thanks thank thx \
     ty cheers you so very much a lot bunch ton million ok okay k cool great nice awesome perfect \
     excellent wonderful fantastic brilliant amazing lovely yes no yeah yep yup nope nah sure got it i \
     see understood understand sounds lol haha hahaha hehe wow oh ah aha hmm mhm bye goodbye later cya \
     ciao there again that is was all right alright fine indeed exactly true agreed for your help the \
     this really appreciate appreciated helpful makes sense fair enough of course problem welcome are and \
     to meet well done job works worked too my friend buddy mate pal dear everyone interesting info \
     answer explanation quick question sorry oops please go on continue next more take care sweet dreams \
     tomorrow soon talk catch up have one same what hallo danke bonjour merci salut hola gracias grazie \
     obrigado obrigada olá hei tak guten tag morgen abend schön vielen dank bitte ja nein oui non si sí \
     tschüss bis bald au revoir beaucoup muchas buenos días adios adiós prego tudo bem genau klar super",
);

/// Verbs that open a request.
pub(super) static REQUESTS: Words = Words::new(
    "write translate tell explain give show make create help find list suggest recommend describe \
     generate draft rewrite rephrase paraphrase fix compare calculate compute solve summarise summarize \
     recap define convert search check review edit improve proofread pretend imagine suppose assume act \
     play sing say repeat continue try add remove change use read analyse analyze plan book set open run \
     print send answer remind teach walk name classify extract correct refactor implement debug shorten \
     expand simplify draw outline brainstorm complete finish pick choose guess look think consider keep \
     stop start quiz ask evaluate rate rank sort count code design build provide elaborate let roleplay \
     turn respond reply speak spell pronounce role include insert replace delete ignore grade",
);

/// Words that open a question.
pub(super) static ASKING: Words = Words::new(
    "what who whom whose where when why how which wer wie wo wann warum welche welcher welches qui quoi \
     où quand pourquoi comment quel quelle qué quién dónde cuándo cómo cuál chi cosa dove quando perché \
     qual quem onde",
);

/// Auxiliaries that open a question when a subject follows.
pub(super) static AUXILIARY: Words = Words::new(
    "is are am was were do does did can could would will should shall may might have has had must",
);

/// Subjects that follow an auxiliary in a question.
pub(super) static SUBJECTS: Words = Words::new(
    "i you he she it we they this that there the a an my your our his her their these those not any \
     anyone someone everyone people what all one",
);

/// Words before the content of a sentence.
pub(super) static FILLERS: Words = Words::new(
    "pls plz scratch that hey hi hello ok okay so well and but also btw oh yes yeah no actually please just anyway look \
     honestly fyi um hmm right sure great cool now then plus haha lol alright nope yep kindly could can \
     would will you ah sorry wow listen to be clear again always",
);

/// Words that carry no content of their own.
pub(super) static STOP: Words = Words::new(
    "a an the i me my mine we us our ours you your yours he him his she her hers it its they them their \
     theirs this that these those is am are was were be been being have has had do does did will would \
     can could shall should may might must and or but if then so because as of at by for with about to \
     from in on into onto over under up down out off than too very just also there here when where who \
     whom whose which what why how all any some such own same other more most much many now really one \
     get got going go like not no",
);

/// Words that a model may add around quoted words, in an extraction or a summary.
pub(super) static SCAFFOLD: Words = Words::new(
    "user users user's assistant assistant's persona person speaker they said says say mentioned mentions \
     told tells stated states reported reports shared shares name named called currently lives living \
     works working has likes enjoys wants prefers plans fact conversation talked discussed asked asks \
     explained answered summary during later",
);

/// Past forms of a person's actions.
pub(super) static PAST: Words = Words::new(
    "set went visited bought sold graduated finished started quit broke lost adopted married met moved passed \
     failed ran won had made built wrote published watched saw cooked baked planted learned learnt signed \
     enrolled joined left resigned retired grew took flew drove hiked climbed travelled traveled booked \
     painted attended celebrated injured sprained divorced named received applied interviewed donated \
     volunteered completed picked dreamed dreamt spent hosted invited accepted studied worked lived \
     served competed performed recovered caught got read became stopped switched changed ordered \
     inherited founded launched raised swam cycled trained taught played sang danced renovated crashed \
     fell gave turned gained saved registered proposed organised organized discovered restored repaired \
     knitted brought decided told cried reconnected earned tore burned been known gone seen taken written \
     done owned loved wanted dropped qualified landed rescheduled postponed cancelled canceled",
);

/// A person's present or planned activities.
pub(super) static DOING: Words = Words::new(
    "planning traveling travelling flying moving starting getting visiting taking training studying \
     learning writing reading saving expecting working building renovating preparing recovering dating \
     seeing raising growing teaching hosting buying selling going leaving retiring applying interviewing \
     competing running organising organizing volunteering rehearsing knitting painting watching playing \
     restoring practicing practising hoping considering celebrating driving hiking camping finishing \
     quitting joining enrolling launching adopting marrying divorcing switching cooking baking \
     translating composing directing attending meeting spending sleeping suffering struggling caring \
     fostering collecting redecorating designing transferring listening drinking eating",
);

/// A person's habits, skills or occupations.
pub(super) static HABITUAL: Words = Words::new(
    "speak play teach study collect swim bake knit paint garden volunteer coach practice practise compose \
     draw sing dance ski surf hike climb cycle commute own rent drive ride major minor program sew fish \
     camp brew meditate cook smoke sleep breed raise tutor manage lead work wake foster row skate sail \
     jog box wear grow subscribe share attend run train walk take keep care make drink eat listen",
);

/// Words before a request or a question that do not change it.
pub(super) static OPENERS: Words =
    Words::new("pls plz heyy please hey hi ok okay so and but also well hello now then");

/// Words of the command to keep something, before the statement to keep.
pub(super) static COMMAND: Words = Words::new(
    "remember that this forget do not please keep in mind bear note make a mental of save store record never for \
     future reference the to can could you fact hey ok also and i want would like need know memorise memorize always \
     just so denk daran dass merk merke dir bitte recuerda que souviens toi retiens ricorda che lembre se de onthoud \
     dat down then well oh your records log next time it memory about me add write take put another information",
);

/// Verbs and nouns of keeping; the statement to keep follows one of them.
pub(super) static KEEPING: Words = Words::new(
    "remember forget mind note save store record memorise memorize reference records know log keep information merk \
     merke daran recuerda souviens retiens ricorda lembre onthoud",
);

/// Words that begin the statement to keep, though they may also be part of the command.
pub(super) static OWN: Words =
    Words::new("i my we our ich mein meine je mon ma mi soy eu meu minha ik mijn j'ai the");

/// Beginnings of words about body and mind, love life, faith, politics, money, crime and violence. Allergies
/// and diets are not intimate: people share them for safety.
pub(super) static INTIMATE_STEMS: Words = Words::new(
    "diagnos depress bipolar schizo anorexi bulimi suicid antidepress prescri chemo tumor tumour diabet \
     epilep hepatit miscarr pregnan infertil menopaus alzheimer parkinson arthrit alcoholi relaps addict \
     bankrupt abus assault rape trauma bisexual homosexual heterosexual transgender lesbian autis \
     dementia psychiatr psychothera hysterectom vasectom endometrio cancer gonorrh chlamyd fetish porn \
     erotic orgasm nonbinary catholic muslim protestant buddhis hindu atheis agnosti judaism islam \
     jehovah mormon republican democrat communis socialis conservativ anarchis insomni migrain schwanger \
     krebs enceinte embaraza cáncer krank schwul lesbisch gehalt salaire sueldo stipendio divorc convict \
     imprison colonoscop biops psoria asthma hiv ivf ptsd adhd incontinen erectile contracept undocument \
     asylum dyslexi",
);

/// Words after "the password is" when no secret follows.
pub(super) static TELLS_NOTHING: Words = Words::new(
    "not wrong too weak strong a so expired broken safe secure important hard easy difficult often \
     annoying usually about for in on",
);

/// Verbs of speech and thought, of machines and texts: such an action is about the conversation.
pub(super) static CHATTER: Words = Words::new(
    "wish think thought mean meant see saw guess know knew hope want wanted need wonder wondered understand understood agree \
     say said ask asked try tried feel felt suppose figure figured reckon doubt notice noticed realise realised realize \
     realized bet swear check checked find found look looked read heard hear copy copied paste pasted update updated \
     change changed add added remove removed typed type click clicked press pressed run ran install installed get got \
     expect expected assume assumed forget forgot remember recall appreciate recommend suggest misread missed apologise \
     apologize regret imagine believe care concur object repeat tell told keep use used work am are is was were have had \
     has can could would should will might may must do did does not love like hate prefer enjoy thank thanks give come \
     go start stop take make let set put",
);

/// Endings of the names of medicines.
pub(super) static MEDICINES: Words = Words::new(
    "farin parin pril olol statin prazole conazole zumab ximab tinib azepam azolam oxetine pramine triptyline formin \
     cillin mycin sartan zepine thyroxine sertraline citalopram codone codeine gliptin setron vudine",
);

/// Texts that a request refers to.
pub(super) static TEXTS: Words = Words::new(
    "text paragraph sentence sentences email mail letter message passage article essay poem story note dialogue transcript",
);

/// Words of tasks and machines: a weak statement with one of them is about the task at hand.
pub(super) static TASK_WORDS: Words = Words::new(
    "file files folder pdf link website app error errors bug exception traceback function query compile compiler prompt answer response question \
     paragraph sentence regex json loop variable output input command button yaml csv stacktrace syntax \
     endpoint localhost terminal dataframe formula spreadsheet column api sql html essay homework \
     assignment outline docs documentation setting settings script package version tutorial chapter draft \
     translation article css dockerfile kubernetes segfault null dependency dependencies library \
     screenshot",
);

/// Conjunctions that begin a clause.
pub(super) static JOINING: Words = Words::new("and but so because since as plus though although while yet");

/// Small numbers in words.
static NUMBERS: Words = Words::new(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen \
     eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred",
);

/// States of marriage.
static MARITAL: Words = Words::new("married engaged divorced single widowed separated");

/// Words between a subject and its verb that do not change the meaning.
pub(super) static ADVERBS: Words = Words::new(
    "really absolutely also still always so just do totally truly usually often mostly definitely generally \
     especially particularly personally secretly quite now currently even mainly actually only already recently \
     finally sometimes never kind of sort both have all once honestly typically normally kinda simply deeply \
     regularly apparently",
);

/// Forms of being.
static BE: Words = Words::new("is are 's was am");

/// Whether a word is a number, in digits or as a small number word.
pub(super) fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) || NUMBERS.contains(word)
}

/// A set by its name in patterns.
///
/// # Panics
/// For an unknown name: the patterns are constants of this crate, and a test compiles them all.
pub(super) fn set(name: &str) -> &'static [&'static str] {
    let words = match name {
        "relation" => &RELATIONS,
        "single" => &SINGLE,
        "pet" => &PETS,
        "diet" => &DIETS,
        "job" => &JOBS,
        "day" => &DAYS,
        "attribute" => &ATTRIBUTES,
        "marital" => &MARITAL,
        "past" => &PAST,
        "doing" => &DOING,
        "habitual" => &HABITUAL,
        "be" => &BE,
        "adverb" => &ADVERBS,
        other => unreachable!("no set of words is called {other}"),
    };
    words.all()
}
