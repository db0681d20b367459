"""Official known answers of ML-KEM-768 and X-Wing, and refusals of malformed keys."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from baton_client import mlkem
from baton_client.crypto import x25519, x25519_public
from baton_client.errors import VerificationError

VECTORS = Path(__file__).resolve().parents[3] / "keys" / "vectors"
h = bytes.fromhex


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


class KnownAnswers(unittest.TestCase):
    def test_ml_kem_768(self) -> None:
        vectors = load("ml-kem-768.json")
        for item in vectors["keys"]:
            self.assertEqual(mlkem.public_key(h(item["seed"])).hex(), item["ek"])
        for item in vectors["encapsulations"]:
            ciphertext, share = mlkem.encapsulate(h(item["ek"]), h(item["m"]))
            self.assertEqual((ciphertext.hex(), share.hex()), (item["c"], item["K"]))
        for item in vectors["decapsulations"]:
            self.assertEqual(mlkem.decapsulate(h(item["seed"]), h(item["c"])).hex(), item["K"])
        self.assertEqual(len(vectors["refused_keys"]), 3)
        for item in vectors["refused_keys"]:
            with self.assertRaises(mlkem.MalformedKeyError):
                mlkem.encapsulate(h(item["ek"]), bytes(32))

    def test_x_wing(self) -> None:
        vectors = load("x-wing.json")["vectors"]
        self.assertEqual(len(vectors), 3)
        for item in vectors:
            key = mlkem.hybrid_public(h(item["sk"]), x25519_public)
            self.assertEqual(key.hex(), item["pk"])
            ciphertext, share = mlkem.hybrid_encapsulate(key, h(item["eseed"]), x25519, x25519_public)
            self.assertEqual((ciphertext.hex(), share.hex()), (item["ct"], item["ss"]))
            self.assertEqual(mlkem.hybrid_decapsulate(h(item["sk"]), ciphertext, x25519, x25519_public), share)


class Refusals(unittest.TestCase):
    def test_keys_and_messages_of_another_length(self) -> None:
        key = mlkem.hybrid_public(bytes(32), x25519_public)
        for wrong in (b"", key[:-1], key + b"\0"):
            with self.assertRaises(mlkem.MalformedKeyError):
                mlkem.hybrid_encapsulate(wrong, bytes(64), x25519, x25519_public)
        with self.assertRaises(mlkem.MalformedKeyError):
            mlkem.encapsulate(key, bytes(32))
        with self.assertRaises(ValueError):
            mlkem.hybrid_decapsulate(bytes(32), bytes(1119), x25519, x25519_public)
        with self.assertRaises(ValueError):
            mlkem.decapsulate(bytes(64), bytes(1087))

    def test_weak_x25519_keys_on_both_sides(self) -> None:
        key = mlkem.hybrid_public(bytes(32), x25519_public)
        ciphertext, _ = mlkem.hybrid_encapsulate(key, bytes(range(64)), x25519, x25519_public)
        for weak in (bytes(32), b"\1" + bytes(31)):
            with self.assertRaises(VerificationError):
                mlkem.hybrid_encapsulate(key[:-32] + weak, bytes(range(64)), x25519, x25519_public)
            with self.assertRaises(VerificationError):
                mlkem.hybrid_decapsulate(bytes(32), ciphertext[:-32] + weak, x25519, x25519_public)

    def test_an_altered_message_gives_another_share(self) -> None:
        key = mlkem.hybrid_public(bytes(32), x25519_public)
        ciphertext, share = mlkem.hybrid_encapsulate(key, bytes(range(64)), x25519, x25519_public)
        for at in (0, 1087, 1088):
            altered = bytearray(ciphertext)
            altered[at] ^= 1
            found = mlkem.hybrid_decapsulate(bytes(32), bytes(altered), x25519, x25519_public)
            self.assertNotEqual(found, share)


if __name__ == "__main__":
    unittest.main()
