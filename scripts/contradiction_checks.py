"""The rules of a contradiction: docs/EXTENSIONS.md, "Checks of answers". Used by verify_export.py."""

import baton_format as fmt
from baton_format import need

MAX_VERDICTS = 8
DECIDING_WITNESSES = 2


def judge(author, verdicts):
    """The witnesses and the accused nodes by (node, verdict): both empty where too few agree, None where all do."""
    groups = []
    for node, verdict in verdicts:
        group = next((nodes for known, nodes in groups if known == verdict), None)
        if group is None:
            groups.append((verdict, [node]))
        else:
            group.append(node)
    if len(groups) == 1 and groups[0][0][0] == "Same":
        return None
    sizes = [len(nodes) for _, nodes in groups]
    most = max(sizes)
    if most < DECIDING_WITNESSES or sizes.count(most) > 1:
        return [], []
    verdict, witnesses = groups.pop(sizes.index(most))
    accused = [node for _, nodes in groups for node in nodes]
    return witnesses, accused + ([] if verdict[0] == "Same" else [author])


def check_contradiction(answer, receipts):
    """Returns the report; raises Refused. Both are encoded receipts: of the answer, and those with verdicts on it."""
    need(len(receipts) <= MAX_VERDICTS, "FrameTooLarge", "at most %d receipts" % MAX_VERDICTS)
    first, signed = fmt.open_encoded("Receipt", answer)
    name, verdicts, probes = fmt.signed_hash("receipt-hash", signed), [], []
    for encoded in receipts:
        receipt, _ = fmt.open_encoded("Receipt", encoded)
        check = next((check for check in receipt["checks"] if check["order"]["receipt"] == name), None)
        need(check is not None, "ReceiptMismatch", "a receipt without a verdict on the answer")
        fits = all(receipt[field] == first[field] for field in ("session_id", "model"))
        fits = fits and receipt["seq"] > first["seq"] and {receipt["engine"], first["engine"]} == {"Native"}
        need(fits and check["verdict"][0] != "NotComparable", "ReceiptMismatch", "a verdict that proves nothing")
        probes.append(check["order"]["probe"])
        verdicts.append((receipt["node"], check["verdict"]))
    need(verdicts, "BadSequence", "a contradiction needs a verdict")
    nodes = {first["node"]} | {node for node, _ in verdicts}
    need(len(nodes) == len(verdicts) + 1 and len(set(probes)) == 1, "ReceiptMismatch", "a node twice, or another probe")
    judged = judge(first["node"], verdicts)
    need(judged is not None, "ReceiptMismatch", "no node contradicts another")
    witnesses, accused = ([node.hex() for node in nodes] for nodes in judged)
    return {"author": first["node"].hex(), "accused": accused, "witnesses": witnesses, "model": first["model"].hex(),
            "seq": first["seq"], "nodes": [node.hex() for node, _ in verdicts], "decided": bool(accused)}
