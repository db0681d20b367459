//! All problems that `doctor` can find: code, title and fix. Codes are stable: a code never gets a new
//! meaning. docs/MEMORY.md lists them.

use baton_kit::problem_codes;

problem_codes! {
    CONFIG_BROKEN = problem("R101", "the configuration cannot be used", "correct the named line or option; config.toml explains each");
    NO_DATA_DIR = warning("R102", "there is no data folder yet", "run `baton-relayer init`, or name another folder with --data-dir");
    DATA_DIR_BROKEN = problem("R103", "the data folder cannot be used", "give the relayer's user the folder (chown), or name another one with --data-dir");
    DATA_DIR_OPEN = warning("R104", "others on this machine can look into a folder of the relayer", "run chmod 700 on it");
    KEY_MISSING = problem("R105", "a key is missing that the existing memory needs", "put the file's copy back; without the master key, the memory cannot be read");
    KEY_READABLE = problem("R106", "others on this machine can read a key", "run chmod 600 on the file");
    KEY_BROKEN = problem("R107", "a key file cannot be read", "put the file's copy back");
    KEYS_OTHER = problem("R108", "the owners' keys belong to another master key", "put master.key and the keys folder of the same relayer together, or correct keys_dir");
    DISK_FULL = problem("R109", "the disk is almost full", "make room: without it, memory is not written");
    DISK_LOW = warning("R110", "the disk is filling up", "make room");
    OWNER_KEY_BROKEN = problem("R111", "an owner's key file does not open, so this owner is refused", "put the file back from a backup");

    DATABASE_BUSY = problem("R201", "another process uses the database, and no relayer answers", "name the running relayer's address with --http; if that is right, restart it");
    DATABASE_BROKEN = problem("R202", "the database cannot be opened, or is damaged", "do what the detail says; without a way out, put a backup back with `baton-relayer restore FILE`");
    POSTGRES_URL_BROKEN = problem("R203", "the file of the Postgres URL cannot be used", "write one line, postgres://user:password@host/database, into postgres_url_file, and run chmod 600 on it");
    POSTGRES_SILENT = problem("R204", "Postgres cannot be used", "do what the detail says, and check the URL in postgres_url_file");
    POSTGRES_NO_VECTOR = problem("R205", "the Postgres server lacks pgvector", "install pgvector on the database's machine");
    POSTGRES_NOT_BUILT = problem("R206", "this program was built without Postgres", "build it with the feature `postgres`, or remove postgres_url_file");

    EMBEDDER_MISSING = problem("R301", "the embedder's model is not downloaded", "run `baton-relayer models pull NAME`, or set embedder = \"auto\"");
    EMBEDDER_PLAIN = warning("R302", "memory is searched without an embedding model", "run `baton-relayer models pull potion-base-8m`, then restart the relayer");
    EMBEDDER_DAMAGED = problem("R303", "a file of the embedder's model is damaged", "remove the file, and run `baton-relayer models pull NAME`");
    EMBEDDER_SILENT = problem("R304", "the embedding endpoint does not answer", "start it, or correct embedder_url");
    EMBEDDER_REFUSES = problem("R305", "the embedding endpoint refuses", "correct embedder_key_file");
    EMBEDDER_LACKS_MODEL = warning("R306", "the embedding endpoint does not list the model", "load it there, or correct embedder_model");
    MODEL_SILENT = problem("R307", "the language model's endpoint does not answer", "start it, or correct model_url; owners' turns wait meanwhile");
    MODEL_REFUSES = problem("R308", "the language model's endpoint refuses", "correct model_key_file");
    MODEL_NOT_LISTED = warning("R309", "the language model's endpoint does not list the model", "load it there, or correct model");

    AGGREGATOR_SILENT = problem("R401", "an aggregator does not answer", "correct aggregators, or wait for it; others are used meanwhile");
    PUBLISHER_SILENT = problem("R402", "a publisher does not answer", "correct publishers, or wait for it; contents stay in the database meanwhile");
    STORE_SLOW = warning("R403", "the store answers slowly", "put a nearer aggregator or publisher first");
    HEADS_SILENT = problem("R404", "the head index does not answer", "correct heads, or remove it");
    HEADS_MISSING = warning("R405", "the store has no head index", "correct heads, or remove it");
    STORE_TOKEN_BROKEN = problem("R406", "the publishers' token or secret cannot be used", "correct publisher_token_file or publisher_secret_file");
    SHARDS_DIFFER = problem("R407", "the store has another number of shards", "set shards to the number of the store");
    STORE_SILENT = problem("R408", "the store does not answer", "start it, or name another in publishers, aggregators and heads");
    PUT_REFUSED = problem("R409", "a publisher refuses this relayer's blobs", "name the secret or token that its operator gave you: publisher_secret_file or publisher_token_file");

    PORT_TAKEN = problem("R501", "an address is taken by another process", "stop that process, or choose another port in http or listen");
    PORT_REFUSED = problem("R502", "an address cannot be used", "choose an address of this machine, and a port above 1023, in http or listen");
    PORT_NOT_OPEN = problem("R503", "the running relayer does not listen on a configured address", "give doctor the options that `run` has, or restart the relayer");
    HTTP_OTHER = problem("R504", "another program answers at the HTTP address", "stop that program, or choose another port in http");

    NOT_READY = problem("R601", "the running relayer is not ready", "do what the detail says; the findings here may help");
    DEGRADED = problem("R602", "the running relayer's memory does not work", "do what the detail says; the findings here may help");
    OTHER_VERSION = warning("R603", "the running relayer is of another version than this program", "restart the relayer");
    OTHER_SETTINGS = warning("R604", "the running relayer has other settings than these", "give doctor the options that `run` has, or restart the relayer");
    OWNERS_REFUSED = problem("R605", "the running relayer refuses some owners", "put damaged key files back from a backup; for a database that is behind, run `baton-relayer owners accept-loss`");

    NODES_NEEDED = problem("R701", "no node can be found, and this configuration needs one", "name some nodes in bootstrap, or set mdns = true");
    NODES_NONE = warning("R702", "no node can be found, so sealed turns cannot be passed on", "name some nodes in bootstrap, or set mdns = true");
    BOOTSTRAP_SILENT = warning("R703", "a bootstrap node cannot be reached", "correct its address in bootstrap, or remove it");
    BOOTSTRAP_OTHER = problem("R704", "another node answers at a bootstrap node's address", "ask its operator for the address, and correct bootstrap");
    BOOTSTRAP_ALL_SILENT = problem("R705", "no bootstrap node can be reached", "see that this machine reaches the network, and correct bootstrap");
    PEERS_NONE = warning("R706", "the running relayer has no connection to any node", "see that a node runs on this network, or name one in bootstrap");
    BOOTSTRAP_ANONYMOUS = warning("R707", "a bootstrap address does not say whose it is", "add /p2p/ and the node's peer id to it");

    CLOCK_OFF = problem("R801", "this machine's clock and the store's differ", "switch on time synchronisation (such as `timedatectl set-ntp true`)");
    CLOCK_ABSURD = problem("R802", "this machine's clock is years off", "set the clock, and switch on time synchronisation");
}

#[cfg(test)]
mod tests {
    use baton_kit::doctor::undocumented;

    use super::ALL;

    #[test]
    fn codes_are_unique_and_documented_word_by_word() {
        let wrong = undocumented(ALL, include_str!("../../../docs/MEMORY.md"));
        assert!(wrong.is_empty(), "docs/MEMORY.md: {}", wrong.join("\n"));
    }
}
