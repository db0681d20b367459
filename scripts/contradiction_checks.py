"""The rules of a contradiction: docs/EXTENSIONS.md, "Decoys and contradictions". Used by verify_export.py.

A session here is what verify_export.py opened and verified: the export, and its turns in order, each as a dictionary with
`turn` (of the export), `link`, `record`, `auth` and `receipt`.
"""

import baton_format as fmt
from baton_format import kdf, need

MAX_SESSIONS = 8
DECIDING_WITNESSES = 2


def whole_grant(export, turns):
    """The grant of the last turn that shows the node every earlier turn."""
    last, earlier = turns[-1], turns[:-1]
    blobs = []
    if earlier:
        blobs = [{"segment": 0, "blob": last["link"]["prev_blob"], "author": earlier[-1]["link"]["author"],
                  "key": earlier[-1]["turn"]["blob_key"]}]
    return {"segment": 0, "index": len(earlier), "record_key": last["turn"]["record_key"],
            "blob_key": last["turn"]["blob_key"], "blobs": blobs,
            "records": [{"seq": turn["link"]["seq"], "key": turn["turn"]["record_key"]} for turn in earlier],
            # The order says where the blob is.
            "head": None}


def check_session(export, turns):
    """What one session must be, so that its last answer depends on nothing but the request in it."""
    need(export["root"] is None, "PayloadRejected", "a session with its root")
    need(len(export["segments"]) == 1 and len(turns) <= fmt.SEGMENT_TURNS, "BadSequence", "not one segment")
    last = turns[-1]
    auth, receipt, sampling = last["auth"], last["receipt"], last["turn"]["sampling"]
    complete = auth is not None and receipt is not None and sampling is not None and last["turn"]["system"] is not None
    need(complete, "ReceiptMismatch", "the last turn lacks its order, receipt, system text or sampling")
    plain = all(turn["record"]["kind"] == "Turn" and turn["record"]["supersedes_from"] is None for turn in turns)
    need(plain, "ReceiptMismatch", "a turn that is not an ordinary one")
    bare = receipt["engine"] == "Native" and receipt["window_from"] == 0 and receipt["memory_items"] == 0
    bare = bare and auth["memory_from"] is None and auth["resume"] is None and sampling["json_schema"] is None
    need(bare, "ReceiptMismatch", "the answer depends on more than the session shows")
    granted = kdf("grant-hash", fmt.encode(fmt.GRANT, whole_grant(export, turns)))
    need(granted == auth["grant_hash"], "ReceiptMismatch", "the node was not given the whole history")


def request_of(turns):
    """What an honest node's answer depends on."""
    last = turns[-1]
    return {"model": last["receipt"]["model"], "sampling": fmt.encode(fmt.SAMPLING, last["turn"]["sampling"]),
            "max_output_tokens": last["auth"]["max_output_tokens"], "system": last["turn"]["system"],
            "earlier": [turn["record"]["messages"] for turn in turns[:-1]], "new": last["record"]["messages"][:-1]}


def answer_of(turns):
    last = turns[-1]
    return last["record"]["messages"][-1]["text"], last["record"]["finish"], last["receipt"]["tokens"]["output"]


def is_cut(short, long):
    """Whether one answer is the beginning of the other: a node's own limits of price and quota may end it early."""
    return short[1] == "Length" and short[2] < long[2] and long[0].startswith(short[0])


def check_contradiction(sessions):
    """Returns the report; raises Refused. The accused node's session is the first."""
    need(len(sessions) <= MAX_SESSIONS, "FrameTooLarge", "at most %d sessions" % MAX_SESSIONS)
    need(len(sessions) >= 2, "BadSequence", "a contradiction needs two sessions")
    for export, turns in sessions:
        check_session(export, turns)
    nodes = [turns[-1]["receipt"]["node"] for _, turns in sessions]
    need(len(set(nodes)) == len(nodes), "ReceiptMismatch", "a node is there twice")
    (_, accused), (_, first) = sessions[:2]
    for _, turns in sessions[1:]:
        need(request_of(turns) == request_of(accused), "ReceiptMismatch", "the requests differ: no contradiction")
        need(answer_of(turns) == answer_of(first), "ReceiptMismatch", "the witnesses contradict each other")
    one, other = answer_of(accused), answer_of(first)
    differ = one != other and not is_cut(one, other) and not is_cut(other, one)
    need(differ, "ReceiptMismatch", "the answers do not contradict each other")
    texts = [answer[0].encode("utf-8") for answer in (one, other)]
    same = next((at for at, (a, b) in enumerate(zip(*texts)) if a != b), min(map(len, texts)))
    return {"accused": nodes[0].hex(), "witnesses": [node.hex() for node in nodes[1:]],
            "model": accused[-1]["receipt"]["model"].hex(), "seq": accused[-1]["receipt"]["seq"], "differs_at": same,
            "decided": len(nodes) > DECIDING_WITNESSES}
