//! All problems that `doctor` can find: code, title and fix. Codes are stable: a code never gets a new
//! meaning. docs/OPERATING.md lists them.

use baton_kit::problem_codes;

problem_codes! {
    CONFIG_BROKEN = problem("D101", "the configuration cannot be used", "correct the file; `baton-node config` names all problems, or the origin of each value");
    NO_DATA_DIR = problem("D102", "the data directory is missing or cannot be used", "run `baton-node init`, or name another one with --data-dir");
    DATA_DIR_OPEN = warning("D103", "others on this machine can look into the data directory", "run chmod 700 on it (--fix does)");
    KEY_MISSING = problem("D104", "there is no node key", "run `baton-node keys restore FILE` with its copy, or `baton-node init` for a new one");
    KEY_READABLE = problem("D105", "others on this machine can read a key", "run chmod 600 on the file (--fix does), then stop the node and run `baton-node keys rotate`");
    KEY_BROKEN = problem("D106", "the node key cannot be opened", "move it away and run `baton-node keys restore FILE` with its copy");
    EXCHANGE_BROKEN = problem("D107", "the exchange keys cannot be read", "stop the node and run `baton-node keys rotate`");
    EXCHANGE_EXPIRED = problem("D108", "the running node's exchange keys have expired", "make room on the disk, then restart the node");

    CLOCK_OFF_STORE = problem("D201", "this machine's clock and the store's differ", "switch on time synchronisation (such as `timedatectl set-ntp true`)");
    CLOCK_OFF_PEERS = problem("D202", "this machine's clock and a peer's differ", "switch on time synchronisation (such as `timedatectl set-ntp true`)");
    CLOCK_ABSURD = problem("D203", "this machine's clock is years off", "set the clock, and switch on time synchronisation");
    CLOCK_ALONE = warning("D204", "no other clock could be compared with this machine's", "give the store with --aggregator, or a peer with --bootstrap, as the node's own command does");

    NOT_WRITABLE = problem("D301", "the data directory cannot be written", "give the node's user the folder (chown), or remount the disk writable");
    DISK_FULL = problem("D302", "the disk is almost full", "make room: without it the journal fails, and turns are refused");
    DISK_LOW = warning("D303", "the disk is filling up", "make room, such as by deleting the file of a model that `baton-node models list` names, or set a smaller journal_mb");
    FEW_FILES = warning("D305", "the process may open too few files for its connections", "raise the limit (ulimit -n, or LimitNOFILE= in the systemd unit)");

    MODEL_UNKNOWN = problem("D401", "the configured model is neither in the catalogue nor in the model folder", "choose one from `baton-node models list`, or take a file of your own in with `baton-node models add`");
    MODEL_MISSING = warning("D402", "the configured model is not fetched yet", "run `baton-node models pull NAME`; the next start would do it as well");
    MODEL_WRONG = problem("D403", "the model file is damaged or another model", "run `baton-node models pull NAME`, which replaces it");
    MODEL_LARGE = problem("D404", "the model does not fit into the memory", "choose a smaller model or kv_mb, or add memory");
    MODEL_BROKEN = problem("D405", "the model file is none that the native engine reads", "choose another model, or serve this one through --engine proxied");
    PROXY_SILENT = problem("D406", "the server behind the proxied engine does not answer", "start it, or correct proxied_url");
    PROXY_REFUSES = problem("D407", "the server behind the proxied engine refuses", "correct proxied_key_file");
    ECHO_ENGINE = warning("D409", "the echo engine repeats what it is told", "set engine = \"native\" or \"proxied\" for service");
    MODEL_OVER_BUDGET = problem("D410", "a configured model does not fit into model_memory_mb", "raise model_memory_mb, choose a smaller model, or lower kv_mb");

    PORT_TAKEN = problem("D501", "a listen address is taken by another process", "stop that process, or choose another port in listen");
    PORT_REFUSED = problem("D502", "a listen address cannot be used", "choose an address of this machine, and a port above 1023, in listen");
    PORT_NOT_OPEN = problem("D503", "the running node does not listen on a configured address", "restart the node; its log says why it could not");
    ADMIN_TAKEN = problem("D504", "the admin port is taken by another process", "stop that process, or choose another port in admin");
    ADMIN_SILENT = problem("D505", "a node uses the data directory and its admin port does not answer", "name its address with --admin; if that is right, restart the node");

    NAT_NO_RELAY = problem("D601", "the node stands behind a NAT and no relay carries it", "forward its port at the router and name the outside address in external, or add a bootstrap peer that relays");
    LOOPBACK_ONLY = warning("D603", "the node listens to this machine only", "set listen = [\"/ip4/0.0.0.0/tcp/4001\", \"/ip4/0.0.0.0/udp/4001/quic-v1\"]");
    EXTERNAL_PRIVATE = warning("D604", "an external address is of a private network", "name the address that the router has outside, or remove it");

    AGGREGATOR_SILENT = problem("D701", "an aggregator does not answer", "correct aggregator, or wait for it; others are used meanwhile");
    PUBLISHER_SILENT = problem("D702", "a publisher does not answer", "correct publisher, or wait for it; blobs stay in the journal meanwhile");
    STORE_SLOW = warning("D703", "the store answers slowly", "put a nearer aggregator or publisher first");
    HEADS_SILENT = problem("D704", "the head index does not answer", "correct heads, or set heads = \"none\"");
    HEADS_MISSING = warning("D705", "the store has no head index", "name one in heads, or set heads = \"none\"");
    TOKEN_BROKEN = problem("D706", "the publisher's token or secret cannot be used", "correct publisher_token_file or publisher_secret_file");
    PUT_REFUSED = problem("D707", "a publisher refuses this node's blobs", "name the secret or token that its operator gave you: publisher_secret_file or publisher_token_file");
    SHARDS_DIFFER = problem("D708", "the store has another number of shards", "set shards to the number of the store");
    STORE_SILENT = problem("D709", "the store does not answer", "start it, or name another in publisher, and in aggregator and heads if they are set");

    BOOTSTRAP_SILENT = warning("D801", "a bootstrap peer cannot be reached", "correct its address in bootstrap, or remove it");
    BOOTSTRAP_OTHER = problem("D802", "another node answers at a bootstrap peer's address", "ask its operator for the address, and correct bootstrap");
    BOOTSTRAP_NONE = warning("D803", "nobody is there to find other nodes through", "name some nodes in bootstrap, or set mdns = true");
    PEERS_NONE = warning("D804", "the running node has no connection to any peer", "see that its network reaches the bootstrap peers");
    BOOTSTRAP_ANONYMOUS = warning("D805", "a bootstrap address does not say whose it is", "add /p2p/ and the peer's name to it");
    BOOTSTRAP_ALL_SILENT = problem("D806", "no bootstrap peer can be reached", "see that this machine reaches the internet, and correct bootstrap");

    NOT_READY = problem("D901", "the running node is not ready", "fix all that it names; the findings here may say how");
    OTHER_VERSION = warning("D902", "the running node is of another version than this program", "restart the node");
}

#[cfg(test)]
mod tests {
    use baton_kit::doctor::undocumented;

    use super::ALL;

    #[test]
    fn codes_are_unique_and_documented_word_by_word() {
        let wrong = undocumented(ALL, include_str!("../../../../docs/OPERATING.md"));
        assert!(wrong.is_empty(), "docs/OPERATING.md: {}", wrong.join("\n"));
    }
}
