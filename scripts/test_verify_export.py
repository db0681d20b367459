"""Tests of verify_export.py: python3 -m unittest discover -s scripts. What holds is accepted; any change is refused."""

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

import nacl.signing

sys.path.insert(0, str(Path(__file__).resolve().parent))
import baton_format  # noqa: E402
import vector_checks  # noqa: E402
import verify_export as verifier  # noqa: E402

VECTORS = Path(__file__).resolve().parent.parent / "proto" / "vectors"
EXPORT = (VECTORS / "export-20.json").read_bytes()
ROOT = "42" * 32
# Between two flipped bytes of the export's body; the first and last ENDS bytes are flipped one by one.
FULL = os.environ.get("BATON_FULL") == "1"
STRIDE = 101 if FULL else 509
ENDS = 400 if FULL else 100


def code_of(data):
    """The code that an export is refused with; None when it is accepted."""
    try:
        verifier.verify_export(data)
    except verifier.Refused as refused:
        return refused.code
    return None


def changed(change):
    export = json.loads(EXPORT)
    change(export)
    return json.dumps(export, ensure_ascii=False, separators=(",", ":")).encode()


def flip(text, position):
    """Base64 text with one bit of the byte at `position` changed."""
    data = bytearray(base64.b64decode(text))
    data[position] ^= 1
    return base64.b64encode(bytes(data)).decode()


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = verifier.main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


class Accepts(unittest.TestCase):
    def test_the_export_of_the_vectors(self):
        report = verifier.verify_export(EXPORT)
        expected = {"turns": 20, "segments": 2, "closed_segments": 1, "blobs_rebuilt": 20, "auths_checked": 19,
                    "receipts_checked": 20, "inputs_checked": 19, "acks_checked": 19, "memory_unchecked": 1,
                    "root_checked": False}
        self.assertEqual({name: report[name] for name in expected}, expected)

    def test_the_export_with_its_root(self):
        report = verifier.verify_export(changed(lambda e: e.update(root=ROOT)))
        self.assertTrue(report["root_checked"])

    def test_an_export_without_proofs_and_counts_them(self):
        def strip(export):
            for turn in export["turns"]:
                turn.update(auth=None, receipt=None, ack=None, system=None, blob_id=None)
        report = verifier.verify_export(changed(strip))
        self.assertEqual((report["turns"], report["auths_checked"], report["receipts_checked"]), (20, 0, 0))

    def test_the_vectors(self):
        report = vector_checks.verify_vectors(VECTORS, verifier)
        self.assertEqual(set(report), set(path.name for path in VECTORS.glob("*.json")))
        self.assertTrue(all(count > 0 for count in report.values()))


class Rules(unittest.TestCase):
    def test_a_segment_closes_at_sixteen_turns_or_at_its_bytes(self):
        def entries(count, extra):
            entry = {"link": {"body": bytes(311), "signature": bytes(64)}, "record": bytes(304)}
            large = dict(entry, record=bytes(extra))
            return [entry] * (count - 1) + [large]

        self.assertFalse(baton_format.is_closed(entries(15, 304)))
        self.assertTrue(baton_format.is_closed(entries(16, 304)))
        rest = 256 * 1024 - baton_format.encoded_length(entries(2, 0))
        self.assertFalse(baton_format.is_closed(entries(2, rest - 1)))
        self.assertTrue(baton_format.is_closed(entries(2, rest)))

    def test_a_lying_count_ends_at_the_missing_element(self):
        lying = (2 ** 60).to_bytes(8, "little")
        for kind in ("bytes", "string", baton_format.List("u64"), baton_format.ITEMS):
            with self.assertRaises(baton_format.Refused):
                baton_format.decode(kind, lying)


class Refuses(unittest.TestCase):
    def test_a_flipped_byte_anywhere(self):
        body = len(EXPORT.rstrip(b"\n"))
        places = set(range(0, body, STRIDE)) | set(range(min(ENDS, body))) | set(range(body - ENDS, body))
        for bit in (0x01, 0x20):
            for place in sorted(places):
                data = bytearray(EXPORT)
                data[place] ^= bit
                self.assertIsNotNone(code_of(bytes(data)), "byte %d, bit %#x" % (place, bit))

    def test_a_truncated_file(self):
        for length in range(0, len(EXPORT) - 2, 997):
            self.assertEqual(code_of(EXPORT[:length]), "Malformed")

    def test_by_name(self):
        def other_turn(name):
            return lambda e: e["turns"][3].update({name: e["turns"][5][name]})

        def signature(name):
            return lambda e: e["turns"][3].update({name: flip(e["turns"][3][name], -1)})

        zero_id = "A" * 43
        cases = [
            ("format", lambda e: e.update(format="baton-export-v1"), "UnsupportedVersion"),
            ("session id", lambda e: e.update(session_id="00" * 32), "SessionIdMismatch"),
            ("session key", lambda e: e.update(session_key="00" * 32), "SessionIdMismatch"),
            ("wrong root", lambda e: e.update(root="43" * 32), "SessionIdMismatch"),
            ("shards", lambda e: e.update(n_shards=1001), "BadGenesis"),
            ("shards of no network", lambda e: e.update(n_shards=3), "BadGenesis"),
            ("statement's signature", lambda e: e["head"].update(statement=flip(e["head"]["statement"], -1)), "BadSignature"),
            ("statement of another kind", lambda e: e["head"].update(statement=e["turns"][0]["ack"]), "NonCanonical"),
            ("no statement", lambda e: e["head"].pop("statement"), "Malformed"),
            ("sampling that was not ordered", lambda e: e["turns"][2].update(receipt=None, sampling=e["turns"][6]["sampling"]),
             "ReceiptMismatch"),
            ("branch", lambda e: e.update(branch={"session_id": ROOT, "link_hash": ROOT}), "BadGenesis"),
            ("head seq", lambda e: e["head"].update(seq=20), "HeadMismatch"),
            ("head link", lambda e: e["head"].update(link_hash="00" * 32), "HeadMismatch"),
            ("no segments", lambda e: e.update(segments=[]), "BadGenesis"),
            ("first segment dropped", lambda e: e["segments"].pop(0), "BadSequence"),
            ("last segment dropped", lambda e: e["segments"].pop(), "HeadMismatch"),
            ("segments swapped", lambda e: e["segments"].reverse(), "BadSequence"),
            ("a byte of a blob", lambda e: e["segments"][0].update(blob=flip(e["segments"][0]["blob"], 99)),
             "PayloadRejected"),
            ("blob key", lambda e: e["segments"][0].update(blob_key=ROOT), "PayloadRejected"),
            ("closed blob ID", lambda e: e["segments"][0].update(blob_id=zero_id), "BlobIdMismatch"),
            ("head blob ID", lambda e: e["segments"][1].update(blob_id=zero_id), "BlobIdMismatch"),
            ("turn dropped", lambda e: e["turns"].pop(3), "BadSequence"),
            ("turn repeated", lambda e: e["turns"].append(e["turns"][19]), "BadSequence"),
            ("turns reordered", lambda e: e["turns"].reverse(), "BadSequence"),
            ("record key", other_turn("record_key"), "PayloadRejected"),
            ("turn's blob key", other_turn("blob_key"), "BlobHashMismatch"),
            ("head's blob key", lambda e: e["turns"][19].update(blob_key=ROOT), "BlobMismatch"),
            ("turn's blob ID", other_turn("blob_id"), "BlobIdMismatch"),
            ("auth of another turn", other_turn("auth"), "ReceiptMismatch"),
            ("receipt of another turn", other_turn("receipt"), "ReceiptMismatch"),
            ("ack of another turn", other_turn("ack"), "ReceiptMismatch"),
            ("auth signature", signature("auth"), "BadSignature"),
            ("receipt signature", signature("receipt"), "BadNodeSignature"),
            ("ack signature", signature("ack"), "BadSignature"),
            ("system text", lambda e: e["turns"][3].update(system=[]), "ReceiptMismatch"),
            ("sampling of another turn", lambda e: e["turns"][2].update(sampling=e["turns"][6]["sampling"]), "ReceiptMismatch"),
            ("sampling that is null", lambda e: e["turns"][2].update(sampling=None), "Malformed"),
            ("unknown field", lambda e: e.update(more=1), "Malformed"),
            ("missing field", lambda e: e.pop("root"), "Malformed"),
            ("fraction", lambda e: e["head"].update(seq=19.0), "Malformed"),
            ("boolean", lambda e: e["turns"][1].update(seq=True), "Malformed"),
            ("negative", lambda e: e["turns"][1].update(seq=-1), "Malformed"),
            ("upper-case hex", lambda e: e.update(session_id=e["session_id"].upper()), "Malformed"),
        ]
        for name, change, code in cases:
            self.assertEqual(code_of(changed(change)), code, name)

    def test_a_link_whose_time_is_far_from_its_order(self):
        export = verifier.parse_export(EXPORT)
        turn = export["turns"][0]
        auth, _ = baton_format.open_encoded("TurnAuth", turn["auth"])
        link = {name: auth[name] for name in ("session_id", "seq", "turn_id", "attempt", "prev_link", "prev_blob")}
        _, signed = baton_format.open_encoded("TurnAuth", turn["auth"])
        link.update(author=auth["audience"], auth_hash=baton_format.signed_hash("auth-hash", signed))
        first, last = auth["issued_ms"] - 30_000, auth["expires_ms"] + 24 * 3600 * 1000
        for time_ms in (first, last):
            verifier.check_auth(export, turn, dict(link, time_ms=time_ms))
        for time_ms in (first - 1, last + 1, 0, 2**64 - 1):
            with self.assertRaises(verifier.Refused) as refused:
                verifier.check_auth(export, turn, dict(link, time_ms=time_ms))
            self.assertEqual(refused.exception.code, "ReceiptMismatch")

    def test_a_minus_zero_in_sampling(self):
        sampling = verifier.parse_sampling(json.loads(EXPORT)["turns"][6]["sampling"])
        for name in ("temperature", "presence_penalty", "frequency_penalty"):
            with self.assertRaises(verifier.Refused):
                baton_format.check_sampling(dict(sampling, **{name: -0.0}))
        with self.assertRaises(verifier.Refused):
            baton_format.check_sampling(dict(sampling, token_biases=[{"token": 1, "bias": -0.0}]))

    def test_a_key_that_does_not_derive_from_the_root(self):
        def change(export):
            export["root"] = ROOT
            export["turns"][19]["blob_key"] = export["turns"][4]["blob_key"]
        self.assertEqual(code_of(changed(change)), "PayloadRejected")

    def test_repeated_fields_and_loose_base64(self):
        self.assertIn(b'"seq":0,', EXPORT)
        self.assertEqual(code_of(EXPORT.replace(b'"seq":0,', b'"seq":-0,', 1)), "Malformed")
        twice = EXPORT.replace(b'{"format"', b'{"n_shards":1000,"format"', 1)
        self.assertEqual(code_of(twice), "Malformed")
        export = json.loads(EXPORT)
        ack = export["turns"][0]["ack"]
        for loose in (ack + "\n", ack + "=", ack.rstrip("=")[:-1] + "=="):
            self.assertIsNotNone(code_of(changed(lambda e: e["turns"][0].update(ack=loose))))

    def test_changed_vectors(self):
        for name in vector_checks.VECTOR_FILES:
            with tempfile.TemporaryDirectory() as folder:
                for path in VECTORS.glob("*.json"):
                    text = path.read_text(encoding="utf-8")
                    if path.name == name:
                        start = [found.start(1) for found in re.finditer(r'"([0-9a-f]{32,})"', text)][-1]
                        swap = "1" if text[start] != "1" else "2"
                        text = text[:start] + swap + text[start + 1:]
                    (Path(folder) / path.name).write_text(text, encoding="utf-8")
                with self.assertRaises(verifier.Refused, msg=name):
                    vector_checks.verify_vectors(Path(folder), verifier)


class Evidence(unittest.TestCase):
    """Two links that one node signed for one turn."""

    def setUp(self):
        self.key = nacl.signing.SigningKey(bytes(range(32)))
        self.first = self.link()

    def link(self, **changes):
        author = self.key.verify_key.encode()
        value = {"version": 1, "session_id": bytes(32), "seq": 0, "segment": 0, "index": 0, "turn_id": bytes(16),
                 "attempt": 0, "prev_link": bytes(32), "prev_blob": None, "record_hash": bytes(32),
                 "record_length": 256, "auth_hash": bytes(32), "receipt_hash": bytes(32), "author": author,
                 "time_ms": 1}
        body = baton_format.encode(baton_format.LINK, dict(value, **changes))
        signature = self.key.sign(baton_format.labelled("link", body)).signature
        return baton_format.encode(baton_format.SIGNED, {"body": body, "signature": signature})

    def code(self, *links):
        texts = [base64.b64encode(link).decode() for link in links]
        pair = {"node": "", "session_id": "", "seq": 9, "link_hashes": [], "links": texts}
        data = json.dumps({"format": "baton-evidence-v3", "signed_twice": [pair]}).encode()
        try:
            return verifier.verify_evidence(data)
        except verifier.Refused as refused:
            return refused.code

    def test_two_links_for_one_turn_are_evidence(self):
        found = self.code(self.first, self.link(time_ms=2))
        self.assertEqual((found[0]["node"], found[0]["seq"]), (self.key.verify_key.encode().hex(), 0))

    def test_what_an_honest_node_may_sign_is_none(self):
        for other in (self.first, self.link(attempt=1), self.link(turn_id=bytes([1] * 16)),
                      self.link(auth_hash=bytes([1] * 32)), self.link(session_id=bytes([1] * 32))):
            self.assertEqual(self.code(self.first, other), "ReceiptMismatch")

    def test_a_changed_link_is_refused(self):
        second = self.link(time_ms=2)
        for at in range(0, len(second), 7):
            bad = bytearray(second)
            bad[at] ^= 1
            self.assertIsInstance(self.code(self.first, bytes(bad)), str, at)


class Contradiction(unittest.TestCase):
    PROOF = (VECTORS / "contradiction.json").read_bytes()

    def code(self, change):
        proof = json.loads(self.PROOF)
        change(proof)
        try:
            verifier.verify_evidence(json.dumps(proof, ensure_ascii=False).encode())
        except verifier.Refused as refused:
            return refused.code
        return None

    def test_the_proof_of_the_vectors(self):
        report = verifier.verify_evidence(self.PROOF)
        self.assertEqual((report["decided"], report["seq"], report["accused"]), (True, 1, [report["author"]]))
        self.assertEqual(report["witnesses"], report["nodes"])
        proof = json.loads(self.PROOF)
        with_one = verifier.verify_evidence(json.dumps(dict(proof, verdicts=proof["verdicts"][:1])).encode())
        self.assertEqual((with_one["decided"], with_one["accused"]), (False, []))

    def test_refusals_by_name(self):
        cases = [
            ("format", lambda p: p.update(format="baton-evidence-v2"), "UnsupportedVersion"),
            ("an unknown field", lambda p: p.update(node=""), "Malformed"),
            ("no verdict", lambda p: p.update(verdicts=[]), "BadSequence"),
            ("too many verdicts", lambda p: p.update(verdicts=p["verdicts"] * 5), "FrameTooLarge"),
            ("a node twice", lambda p: p["verdicts"].append(p["verdicts"][1]), "ReceiptMismatch"),
            ("another answer", lambda p: p.update(answer=p["verdicts"][0]), "ReceiptMismatch"),
            ("a signature", lambda p: p.update(answer=flip(p["answer"], -1)), "BadNodeSignature"),
        ]
        for name, change, code in cases:
            self.assertEqual(self.code(change), code, name)

    def test_a_flipped_byte_anywhere(self):
        for place in range(0, len(self.PROOF) - 1, 103):
            data = bytearray(self.PROOF)
            data[place] ^= 1
            with self.assertRaises(verifier.Refused, msg="byte %d" % place):
                verifier.verify_evidence(bytes(data))


class Command(unittest.TestCase):
    def test_exit_codes(self):
        path = VECTORS / "export-20.json"
        head = json.loads(EXPORT)["head"]["link_hash"]
        self.assertEqual(run(path)[0], 0)
        self.assertEqual(run(path, "--head", head)[0], 0)
        self.assertEqual(run("--vectors", VECTORS)[0], 0)
        code, out, _ = run("--evidence", VECTORS / "contradiction.json")
        self.assertEqual((code, out.startswith("proved")), (0, True))
        code, _, err = run(path, "--head", "00" * 32)
        self.assertEqual((code, "HeadMismatch" in err), (1, True))
        for wrong in ([], [path, "--vectors", VECTORS], ["/nonexistent"], ["--no-such-option"]):
            self.assertEqual(run(*wrong)[0], 2, wrong)

    def test_json_report(self):
        code, out, _ = run(VECTORS / "export-20.json", "--json")
        report = json.loads(out)
        self.assertEqual((code, report["ok"], report["report"]["turns"]), (0, True, 20))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bad.json"
            path.write_bytes(changed(lambda e: e.update(n_shards=7)))
            code, out, _ = run(path, "--json")
        self.assertEqual((code, json.loads(out)["error"]["code"]), (1, "BadGenesis"))


if __name__ == "__main__":
    unittest.main()
