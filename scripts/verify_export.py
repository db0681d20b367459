#!/usr/bin/env python3
"""Verifies an exported Baton session offline, the known-answer vectors, or evidence: that a node signed two links for one
turn, or that nodes contradict each other.

    verify_export.py SESSION.json [--head LINK_HASH] [--json]
    verify_export.py --vectors DIR [--json]
    verify_export.py --evidence FILE [--json]

Exit codes: 0 everything holds, 1 refused, 2 wrong usage. Section numbers are those of docs/PROTOCOL.md. Walrus blob IDs
are compared where the chain names them and are not recomputed here: that needs the erasure coding.
"""

import argparse
import base64
import binascii
import json
import sys
from pathlib import Path

import baton_format as fmt
from baton_format import Refused, kdf, need, u64
from contradiction_checks import check_contradiction
from vector_checks import verify_vectors

# An export larger than this is not read at all; a thousand full segments fit.
MAX_EXPORT = 1024 * 1024 * 1024
U64 = 2 ** 64 - 1


# --- Section 8: the chain ------------------------------------------------------------------------------------------

def verify_segment(segment, start, end_seq, end_hash, at_head):
    """Steps 2 to 6 for one segment. Returns its links, each with its hash under `hash`."""
    links, entries = [], segment["entries"]
    for index, entry in enumerate(entries):
        need(index == 0 or not fmt.is_closed(entries[:index]), "BadSequence", "an entry after its segment closed")
        link = fmt.open_signed("Link", entry["link"])
        placed = (link["session_id"] == segment["session_id"] and link["segment"] == segment["segment"]
                  and link["index"] == index)
        need(placed, "BadSequence", "link %d is not where it says" % link["seq"])
        if links:
            need(link["seq"] == links[-1]["seq"] + 1, "BadSequence", "link %d does not follow" % link["seq"])
            need(link["prev_link"] == links[-1]["hash"], "ChainBroken", "link %d does not continue" % link["seq"])
        elif link["seq"] == 0 or link["segment"] == 0:
            begins = link["seq"] == 0 and link["segment"] == 0 and link["prev_link"] == start
            need(begins, "BadGenesis", "the first link does not continue the genesis")
        same = link["record_hash"] == kdf("record-hash", entry["record"])
        same = same and link["record_length"] == len(entry["record"])
        need(same, "RecordHashMismatch", "record %d is not the one its link names" % link["seq"])
        link["hash"] = fmt.signed_hash("link-hash", entry["link"])
        links.append(link)
    ends = links[-1]["hash"] == end_hash and links[-1]["seq"] == end_seq
    need(ends, "HeadMismatch" if at_head else "ChainBroken", "segment %d ends elsewhere" % segment["segment"])
    return links


# --- Section 13: the export ----------------------------------------------------------------------------------------

def no_repeats(pairs):
    names = [name for name, _ in pairs]
    need(len(names) == len(set(names)), "Malformed", "a field is given twice")
    return dict(pairs)


def whole_number(text):
    need(text != "-0", "Malformed", "-0 is not an integer of this format")
    return int(text)


def no_number(text):
    raise Refused("Malformed", "%s is not an integer" % text)


def load_json(data):
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=no_repeats, parse_int=whole_number,
                          parse_float=no_number, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Refused("Malformed", "not JSON: %s" % error) from None


def fields_of(value, names, what):
    need(isinstance(value, dict), "Malformed", "%s is not an object" % what)
    need(set(value) == set(names.split()), "Malformed", "%s needs exactly the fields %s" % (what, names))
    return value


def integer(value, largest, what):
    need(isinstance(value, int) and not isinstance(value, bool), "Malformed", "%s is not an integer" % what)
    need(0 <= value <= largest, "Malformed", "%s is out of range" % what)
    return value


def text_of(value, what):
    need(isinstance(value, str), "Malformed", "%s is not text" % what)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("Malformed", "%s is not valid Unicode" % what) from None
    return value


def hex_of(value, what):
    text = text_of(value, what)
    need(len(text) == 64 and all(digit in "0123456789abcdef" for digit in text), "Malformed",
         "%s is not 64 lower-case hex digits" % what)
    return bytes.fromhex(text)


def base64_of(value, what):
    text = text_of(value, what)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("Malformed", "%s is not base64" % what) from None
    need(base64.b64encode(data).decode() == text, "Malformed", "%s is not canonical base64" % what)
    return data


def blob_id_of(value, what):
    text = text_of(value, what)
    need(len(text) == 43, "Malformed", "%s is not 43 characters" % what)
    standard = text.replace("-", "+").replace("_", "/") + "="
    need("+" not in text and "/" not in text, "Malformed", "%s is not URL-safe base64" % what)
    return base64_of(standard, what)


def optional(parse, value, what):
    return None if value is None else parse(value, what)


def list_of(value, what):
    need(isinstance(value, list), "Malformed", "%s is not a list" % what)
    return value


def parse_branch(value, what):
    value = fields_of(value, "session_id link_hash", what)
    return {name: hex_of(value[name], name) for name in ("session_id", "link_hash")}


def parse_system(value, what):
    messages = []
    for item in list_of(value, what):
        item = fields_of(item, "role name call_id text", what)
        need(item["role"] in [name for name, _ in fmt.ROLE.variants], "Malformed", "role in %s" % what)
        messages.append({"role": item["role"], "name": optional(text_of, item["name"], "name"),
                         "call_id": optional(text_of, item["call_id"], "call_id"),
                         "text": text_of(item["text"], "text")})
    return messages


def parse_sampling(value):
    sampling = fmt.decode(fmt.SAMPLING, base64_of(value, "sampling"), fmt.MAX_SAMPLING)
    fmt.check_sampling(sampling)
    return sampling


def parse_export(data):
    """The export with bytes in place of text."""
    return parse_session(load_json(data))


def parse_session(value):
    """As parse_export, from JSON that was read already."""
    top = fields_of(value, "format session_id session_key n_shards branch head root segments turns",
                    "an export")
    need(text_of(top["format"], "format") == "baton-export-v2", "UnsupportedVersion", "format")
    head = fields_of(top["head"], "seq link_hash statement", "head")
    export = {
        "session_id": hex_of(top["session_id"], "session_id"),
        "session_key": hex_of(top["session_key"], "session_key"),
        "n_shards": integer(top["n_shards"], 0xffff, "n_shards"),
        "branch": optional(parse_branch, top["branch"], "branch"),
        "head_seq": integer(head["seq"], U64, "head seq"),
        "head_hash": hex_of(head["link_hash"], "head link_hash"),
        "statement": base64_of(head["statement"], "head statement"),
        "root": optional(hex_of, top["root"], "root"),
        "segments": [], "turns": [],
    }
    for item in list_of(top["segments"], "segments"):
        item = fields_of(item, "segment blob blob_id blob_key", "a segment")
        export["segments"].append({
            "segment": integer(item["segment"], U64, "segment"), "blob": base64_of(item["blob"], "blob"),
            "blob_id": blob_id_of(item["blob_id"], "blob_id"), "blob_key": hex_of(item["blob_key"], "blob_key")})
    for item in list_of(top["turns"], "turns"):
        names = "seq record_key blob_key blob_id auth receipt ack system"
        given = isinstance(item, dict) and "sampling" in item
        item = fields_of(item, names + " sampling" if given else names, "a turn")
        turn = {"seq": integer(item["seq"], U64, "seq"), "record_key": hex_of(item["record_key"], "record_key"),
                "blob_key": hex_of(item["blob_key"], "blob_key"),
                "blob_id": optional(blob_id_of, item["blob_id"], "blob_id"),
                "system": optional(parse_system, item["system"], "system"),
                "sampling": parse_sampling(item["sampling"]) if given else None}
        for name in ("auth", "receipt", "ack"):
            turn[name] = optional(base64_of, item[name], name)
        export["turns"].append(turn)
    return export


def check_statement(export):
    """Section 13, step 1: the client itself says that its session reaches this head."""
    statement, _ = fmt.open_encoded("ExportStatement", export["statement"])
    same = statement["session_id"] == export["session_id"] and statement["session_key"] == export["session_key"]
    same = same and statement["seq"] == export["head_seq"] and statement["link_hash"] == export["head_hash"]
    need(same, "HeadMismatch", "the client's statement is of another head")


def check_root(export):
    if export["root"] is None:
        return
    public, _ = fmt.nacl.crypto_sign_seed_keypair(kdf("session-sign", export["root"]))
    need(public == export["session_key"], "SessionIdMismatch", "the root is of another session")


def check_chain(export):
    """Section 13, step 2: from the head back to the genesis. Returns segments and links, oldest first."""
    start = fmt.genesis_hash(export["session_key"], export["n_shards"], export["branch"])
    end_seq, end_hash, found = export["head_seq"], export["head_hash"], []
    for position in range(len(export["segments"]) - 1, -1, -1):
        exported = export["segments"][position]
        need(exported["segment"] == position, "BadSequence", "segments are not numbered in order")
        segment = fmt.open_blob(exported["blob"], exported["blob_key"], export["session_id"], position)
        need(not found or fmt.is_closed(segment["entries"]), "BadSequence", "segment %d is not closed" % position)
        links = verify_segment(segment, start, end_seq, end_hash, not found)
        need(links[0]["seq"] > 0 or position == 0, "BadGenesis", "segment %d starts at the genesis" % position)
        end_seq, end_hash = links[0]["seq"] - 1, links[0]["prev_link"]
        found.append((segment, links))
    need(found and found[-1][1][0]["seq"] == 0, "BadGenesis", "the chain does not reach its genesis")
    return found[::-1]


def check_derived(export, turn, link):
    if export["root"] is None:
        return
    secret = kdf("segment", export["root"], u64(link["segment"]))
    record_key = kdf("record", secret, fmt.identity(link))
    same = record_key == turn["record_key"] and kdf("blob", secret, fmt.blob_salt(record_key)) == turn["blob_key"]
    need(same, "PayloadRejected", "keys of turn %d do not derive from the root" % turn["seq"])


def check_auth(export, turn, link):
    auth, signed = fmt.open_encoded("TurnAuth", turn["auth"])
    same = all(auth[name] == link[name] for name in ("session_id", "seq", "turn_id", "attempt", "prev_link"))
    same = same and auth["audience"] == link["author"]
    same = same and fmt.signed_hash("auth-hash", signed) == link["auth_hash"]
    same = same and auth["prev_blob"] in (None, link["prev_blob"])
    same = same and auth["n_shards"] == export["n_shards"] and auth["branch"] == export["branch"]
    same = same and auth["session_key"] == export["session_key"]
    need(same, "ReceiptMismatch", "authorisation of turn %d is not the one its link names" % link["seq"])
    begin, end = auth["issued_ms"] - fmt.MAX_CLOCK_SKEW_MS, auth["expires_ms"] + fmt.MAX_TURN_MS
    need(begin <= link["time_ms"] <= end, "ReceiptMismatch", "time of turn %d is not near its order's" % link["seq"])
    return auth


def check_receipt(turn, link, record, report):
    receipt, signed = fmt.open_encoded("Receipt", turn["receipt"])
    what = "receipt of turn %d" % link["seq"]
    same = all(receipt[name] == link[name] for name in ("session_id", "seq", "turn_id", "attempt", "auth_hash"))
    same = same and receipt["node"] == link["author"]
    same = same and fmt.signed_hash("receipt-hash", signed) == link["receipt_hash"]
    need(same, "ReceiptMismatch", what + " is not the one its link names")
    messages, memory = record["messages"], receipt["commitments"]["memory"]
    need(messages and messages[-1]["role"] == "Assistant", "ReceiptMismatch", what + " without an answer")
    bare = messages[-1]["name"] is None and messages[-1]["call_id"] is None
    need(bare, "ReceiptMismatch", what + " commits to the text alone of an answer with more")
    output = fmt.commit_output(turn["record_key"], messages[-1]["text"], record["finish"])
    need(receipt["commitments"]["output"] == output, "ReceiptMismatch", what + " commits to another answer")
    sound = (memory is not None) == (receipt["memory_items"] > 0) and receipt["window_from"] <= receipt["seq"]
    nothing = fmt.running_hash(turn["record_key"], receipt["auth_hash"], [])
    sound = sound and (receipt["tokens"]["output"] > 0 or receipt["running_hash"] == nothing)
    need(sound, "ReceiptMismatch", what + " contradicts itself")
    if turn["system"] is not None:
        given = fmt.commit_input(turn["record_key"], turn["system"], receipt["window_from"], messages[:-1])
        need(receipt["commitments"]["input"] == given, "ReceiptMismatch", what + " commits to another input")
        report["inputs_checked"] += 1
    if turn["sampling"] is not None:
        settings = turn["sampling"]
        same = fmt.sampling_digest(turn["record_key"], settings) == receipt["sampling"]
        need(same and settings["seed"] == receipt["seed"], "ReceiptMismatch", what + " names other sampling settings")
    report["memory_unchecked"] += memory is not None
    return receipt


def check_order(receipt, auth):
    """Section 6, Receipt: what the node claims stays within what the client ordered."""
    tokens, resume = receipt["tokens"], auth["resume"]
    within = receipt["model"] == auth["model"] and receipt["sampling"] == auth["sampling"]
    within = within and receipt["price"] <= auth["max_price"] and tokens["output"] <= auth["max_output_tokens"]
    within = within and tokens["memory"] <= auth["memory_tokens"]
    within = within and (auth["memory_from"] is not None or receipt["memory_items"] == 0)
    within = within and (receipt["memory_items"] > 0 or tokens["memory"] == 0)
    within = within and tokens["resumed"] == (resume["token_count"] if resume else 0)
    within = within and tokens["resumed"] <= tokens["output"]
    within = within and [check["order"] for check in receipt["checks"]] == auth["checks"]
    need(within, "ReceiptMismatch", "receipt of turn %d claims what was not ordered" % receipt["seq"])


def check_ack(turn, link, blob):
    note, _ = fmt.open_encoded("TurnNote", turn["ack"])
    same = all(note[name] == link[name] for name in ("session_id", "seq", "turn_id", "attempt"))
    accepted = {"link_hash": link["hash"], "receipt_hash": link["receipt_hash"], "blob_digest": fmt.blake3(blob).digest()}
    need(same and note["node"] == link["author"] and note["kind"] == ("Ack", accepted), "ReceiptMismatch",
         "acknowledgement of turn %d is of something else" % link["seq"])


def check_blob(export, turn, link, segment, count, named, exported):
    """Section 13, steps 3 and 4. `named` is what the next link names; `exported`, the segment if this is its last."""
    salt = fmt.blob_salt(turn["record_key"])
    entries = segment["entries"][:count]
    blob = fmt.make_blob(export["session_id"], link["segment"], entries, turn["blob_key"], salt)
    if named is not None:
        same = named["digest"] == fmt.blake3(blob).digest() and named["length"] == len(blob)
        need(same, "BlobHashMismatch", "blob of turn %d is not the one the next link names" % link["seq"])
        need(turn["blob_id"] in (None, named["blob_id"]), "BlobIdMismatch", "blob ID of turn %d" % link["seq"])
    if exported is not None:
        same = exported["blob"] == blob and exported["blob_key"] == turn["blob_key"]
        need(same, "BlobMismatch", "blob of segment %d is not what its turns give" % link["segment"])
        known = named["blob_id"] if named is not None else turn["blob_id"]
        need(known in (None, exported["blob_id"]), "BlobIdMismatch", "blob ID of segment %d" % link["segment"])
    return blob


def verify_export(data):
    """Everything in section 13. Returns the report; raises Refused."""
    return verify_session(parse_export(data))


def verify_session(export, opened=None):
    """As verify_export, of a parsed export. Appends each opened turn to the list `opened`, if one is given."""
    same = kdf("session-id", export["session_key"]) == export["session_id"]
    need(same, "SessionIdMismatch", "session id is not of this key")
    need(4 <= export["n_shards"] <= 2048, "BadGenesis", "n_shards is out of range")
    check_statement(export)
    check_root(export)
    chain = check_chain(export)
    report = {
        "session_id": export["session_id"].hex(), "head": export["head_hash"].hex(), "turns": 0,
        "segments": len(chain), "closed_segments": sum(fmt.is_closed(segment["entries"]) for segment, _ in chain),
        "blobs_rebuilt": 0, "auths_checked": 0, "receipts_checked": 0, "inputs_checked": 0, "memory_unchecked": 0,
        "acks_checked": 0, "root_checked": export["root"] is not None, "walrus_ids_recomputed": False,
    }
    total = sum(len(links) for _, links in chain)
    need(len(export["turns"]) == total, "BadSequence", "%d turns, %d links" % (len(export["turns"]), total))
    turns = iter(export["turns"])
    for position, (segment, links) in enumerate(chain):
        after = chain[position + 1][1][0] if position + 1 < len(chain) else None
        for index, link in enumerate(links):
            turn = next(turns)
            need(turn["seq"] == link["seq"], "BadSequence", "turn %d stands at %d" % (turn["seq"], link["seq"]))
            sealed = segment["entries"][index]["record"]
            record = fmt.open_record(turn["record_key"], fmt.identity(link), sealed, link["seq"])
            check_derived(export, turn, link)
            last = index + 1 == len(links)
            following = after if last else links[index + 1]
            named = following["prev_blob"] if following else None
            exported = export["segments"][position] if last else None
            blob = check_blob(export, turn, link, segment, index + 1, named, exported)
            auth = check_auth(export, turn, link) if turn["auth"] is not None else None
            receipt = check_receipt(turn, link, record, report) if turn["receipt"] is not None else None
            if auth and receipt:
                check_order(receipt, auth)
            if auth and turn["sampling"] is not None:
                same = fmt.sampling_digest(turn["record_key"], turn["sampling"]) == auth["sampling"]
                need(same, "ReceiptMismatch", "turn %d was ordered with other sampling settings" % link["seq"])
            if turn["ack"] is not None:
                check_ack(turn, link, blob)
                report["acks_checked"] += 1
            if opened is not None:
                opened.append({"turn": turn, "link": link, "record": record, "auth": auth, "receipt": receipt})
            report["auths_checked"] += auth is not None
            report["receipts_checked"] += receipt is not None
            report["turns"] += 1
            report["blobs_rebuilt"] += 1
    return report


# --- The command ---------------------------------------------------------------------------------------------------

def read_export(path):
    size = path.stat().st_size
    need(size <= MAX_EXPORT, "FrameTooLarge", "%d bytes, at most %d" % (size, MAX_EXPORT))
    return path.read_bytes()


def show(report, vectors):
    if vectors:
        for name, count in report.items():
            print("ok  %-16s %d" % (name, count))
        return
    print("ok  session %s" % report["session_id"])
    print("    head    %s" % report["head"])
    print("    %(turns)d turns in %(segments)d segments (%(closed_segments)d closed), %(blobs_rebuilt)d blobs rebuilt"
          % report)
    print("    %(auths_checked)d authorisations, %(receipts_checked)d receipts (%(inputs_checked)d with their input), "
          "%(acks_checked)d acknowledgements" % report)
    if report["memory_unchecked"]:
        print("    %(memory_unchecked)d commitments to memory not checked: an export does not hold the items" % report)
    print("    ordered by the client up to this head: the session's key signed it")
    print("    keys %s" % ("derive from the root" if report["root_checked"] else "opened what they should; no root"))
    print("    Walrus blob IDs compared, not recomputed; nothing here says that no later turn exists")


def verify_evidence(data):
    """Section 9: evidence of either kind. Returns the report, a list for links and a dictionary for a contradiction."""
    value = load_json(data)
    contradiction = isinstance(value, dict) and "verdicts" in value
    evidence = fields_of(value, "format answer verdicts" if contradiction else "format signed_twice", "evidence")
    need(text_of(evidence["format"], "format") == "baton-evidence-v3", "UnsupportedVersion", "format")
    return verify_contradiction(evidence) if contradiction else verify_signed_twice(evidence)


def verify_signed_twice(evidence):
    """Two different links that one node signed for one attempt at one turn, as often as there are such. The report has who
    and where; what is beside the links is for people, and not believed."""
    report = []
    for pair in list_of(evidence["signed_twice"], "signed_twice"):
        pair = fields_of(pair, "node session_id seq link_hashes links", "a pair")
        links = list_of(pair["links"], "links")
        need(len(links) == 2, "Malformed", "not two links")
        opened = [fmt.open_encoded("Link", base64_of(text, "a link")) for text in links]
        (one, _), (other, _) = opened
        for field in ("author", "session_id", "seq", "turn_id", "attempt", "auth_hash"):
            need(one[field] == other[field], "ReceiptMismatch", "the links differ in %s: no evidence" % field)
        hashes = [fmt.signed_hash("link-hash", signed).hex() for _, signed in opened]
        need(hashes[0] != hashes[1], "ReceiptMismatch", "it is one link, twice: no evidence")
        report.append({"node": one["author"].hex(), "session_id": one["session_id"].hex(), "seq": one["seq"],
                       "link_hashes": hashes})
    return report


def show_evidence(report):
    if isinstance(report, dict):
        show_contradiction(report)
        return
    for found in report:
        print("proved   node %(node)s signed two links for turn %(seq)d of session %(session_id)s" % found)
        for link in found["link_hashes"]:
            print("         link %s" % link)
    print("%d proved" % len(report))


def verify_contradiction(evidence):
    """docs/EXTENSIONS.md: receipts on one answer that cannot all be true."""
    verdicts = [base64_of(text, "a receipt") for text in list_of(evidence["verdicts"], "verdicts")]
    return check_contradiction(base64_of(evidence["answer"], "the answer's receipt"), verdicts)


def show_contradiction(report):
    print("%s  the answer of turn %d, by node %s" % ("proved " if report["decided"] else "open   ", report["seq"], report["author"]))
    for node in report["accused"]:
        print("    node %s contradicts the others" % node)
    for node in report["witnesses"]:
        print("    node %s agrees with the others" % node)
    print("    model %s" % report["model"])
    if not report["decided"]:
        print("    some of the nodes lied; a holder of the model can tell which: baton-node replay")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Verify an exported Baton session, or the known-answer vectors.")
    parser.add_argument("export", nargs="?", type=Path, help="an exported session (JSON)")
    parser.add_argument("--vectors", type=Path, metavar="DIR", help="check the known-answer vectors in DIR instead")
    parser.add_argument("--evidence", type=Path, metavar="FILE",
                        help="check what `baton receipts --evidence` wrote, or `baton nodes --proofs` lists, instead")
    parser.add_argument("--head", metavar="HEX", help="link hash that the session must end with")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    given = (options.export, options.vectors, options.evidence)
    if sum(one is not None for one in given) != 1:
        parser.error("give an export, or --vectors DIR, or --evidence FILE")
    if options.head is not None and options.export is None:
        parser.error("--head goes with an export")
    try:
        if options.vectors is not None:
            report = verify_vectors(options.vectors, sys.modules[__name__])
        elif options.evidence is not None:
            report = verify_evidence(read_export(options.evidence))
        else:
            report = verify_export(read_export(options.export))
            wanted = options.head.lower() if options.head is not None else report["head"]
            need(report["head"] == wanted, "HeadMismatch", "the session ends at %s" % report["head"])
    except OSError as error:
        parser.error("cannot read %s: %s" % (error.filename, error.strerror))
    except Refused as refused:
        if options.json:
            print(json.dumps({"ok": False, "error": {"code": refused.code, "detail": refused.detail}}))
        else:
            sys.stderr.write("refused  %s\n" % refused)
        return 1
    if options.json:
        print(json.dumps({"ok": True, "report": report}))
    else:
        if options.evidence is not None:
            show_evidence(report)
        else:
            show(report, options.vectors is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
