"""A disclosed turn, verified from docs/PROTOCOL.md and docs/EXTENSIONS.md ("Audits") alone."""

import baton_format as fmt
from baton_format import need


def superseded(history):
    """The turns that a later record of `history` removed, where `history` has (link, record or None), oldest first."""
    start, gone = 2 ** 64, set()
    for link, record in reversed(history):
        if link["seq"] >= start:
            gone.add(link["seq"])
        elif record is not None and record["supersedes_from"] is not None:
            start = min(start, record["supersedes_from"])
    return gone


def links_of(value, auth, verify_segment):
    """The links of all segments, oldest first, each with its sealed record."""
    start = fmt.genesis_hash(auth["session_key"], auth["n_shards"], auth["branch"])
    end_seq, end_hash, named, found = auth["seq"], None, None, []
    for part in reversed(value["segments"]):
        segment = fmt.open_blob(part["blob"], part["blob_key"], auth["session_id"], part["segment"])
        entries = segment["entries"]
        need(not found or fmt.is_closed(entries), "BadSequence", "segment %d is not closed" % part["segment"])
        if end_hash is None:
            end_hash = fmt.signed_hash("link-hash", entries[-1]["link"])
        links = verify_segment(segment, start, end_seq, end_hash, not found)
        if named is not None:
            same = named["digest"] == fmt.blake3(part["blob"]).digest() and named["length"] == len(part["blob"])
            need(same, "BlobHashMismatch", "blob of segment %d is not the one its next link names" % part["segment"])
        named, end_seq, end_hash = links[0]["prev_blob"], links[0]["seq"] - 1, links[0]["prev_link"]
        found = [(link, entry["record"]) for link, entry in zip(links, entries)] + found
    need(found, "BadSequence", "there is no segment")
    return found


def open_disclosure(value, verifier):
    """Verifies a Disclosure by the functions of verify_export.py. Returns the turns before the disclosed one as (link, record or None), and its record."""
    auth = fmt.open_signed("TurnAuth", value["auth"])
    found = links_of(value, auth, verifier.verify_segment)
    link, sealed = found.pop()
    keys = value["record_keys"]
    need(keys and keys[-1] is not None, "PayloadRejected", "the turn itself has no key")
    record = fmt.open_record(keys[-1], fmt.identity(link), sealed, link["seq"])
    turn = {"auth": fmt.encode(fmt.SIGNED, value["auth"]), "receipt": fmt.encode(fmt.SIGNED, value["receipt"]),
            "record_key": keys[-1], "system": value["system"], "sampling": value["sampling"]}
    session = {name: auth[name] for name in ("n_shards", "branch", "session_key")}
    verifier.check_auth(session, turn, link)
    receipt = verifier.check_receipt(turn, link, record, {"inputs_checked": 0, "memory_unchecked": 0})
    verifier.check_order(receipt, auth)
    start = receipt["window_from"]
    whole = len(keys) == link["seq"] - start + 1 and (not found or found[0][0]["seq"] <= start)
    need(whole, "PayloadRejected", "the keys or the segments do not begin with the window")
    history = []
    for earlier, sealed in found:
        seq = earlier["seq"]
        key = keys[seq - start] if seq >= start else None
        text = None if key is None else fmt.open_record(key, fmt.identity(earlier), sealed, seq)
        history.append((earlier, text))
    gone = superseded(history)
    missing = [item["seq"] for item, text in history if item["seq"] >= start and text is None and item["seq"] not in gone]
    need(not missing, "PayloadRejected", "turns of the window are missing: %s" % missing)
    need(history or link["seq"] == start, "PayloadRejected", "the window has no turns")
    return history, record
