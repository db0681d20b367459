"""Stores and reads through a store with PyPI's walrus-python, unmodified.

Usage: walrus_python.py URL  (a store with 1000 shards). What is compared is what that client sees: the IDs that
Mysten's own encoder gives to known bytes, the bytes that come back, and its errors.
"""

import io
import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

from walrus import WalrusAPIError, WalrusClient

VECTORS = Path(__file__).resolve().parents[2] / "walrus-client/vectors/walrus.json"
OWNER = "0x" + "7a" * 32
# Sizes around the first steps of the symbol size at 1000 shards, and the empty blob.
SIZES = [0, 1, 17, 4096, 445_556, 445_557, 3_000_000]


class OneWay(io.RawIOBase):
    """A stream that can be read once and does not tell its length, so that its upload is chunked."""

    def __init__(self, data):
        self.data = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self.data.readinto(buffer)


class WalrusPython(unittest.TestCase):
    url = ""

    def setUp(self):
        self.client = WalrusClient(self.url, self.url, timeout=60)
        self.random = random.Random(self.id())

    def stored(self, answer):
        self.assertEqual(list(answer), ["newlyCreated"])
        return answer["newlyCreated"]["blobObject"]

    def test_blobs_of_many_sizes_come_back(self):
        for size in SIZES:
            data = self.random.randbytes(size)
            blob = self.stored(self.client.put_blob(data, epochs=2))
            self.assertEqual((blob["size"], blob["encodingType"], blob["deletable"]), (size, "RS2", True))
            self.assertEqual(blob["storage"]["endEpoch"] - blob["storage"]["startEpoch"], 2)
            self.assertEqual(self.client.get_blob(blob["blobId"]), data)

    def test_ids_are_those_of_mystens_encoder(self):
        known = {case["generator"]: case for case in json.loads(VECTORS.read_text())["vectors"] if case["n_shards"] == 1000}
        blob = self.stored(self.client.put_blob(b"hello"))
        self.assertEqual(blob["blobId"], known["utf8:'hello'"]["blob_id"])

    def test_a_file_a_stream_and_a_chunked_upload(self):
        data = self.random.randbytes(200_000)
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            source.write_bytes(data)
            by_file = self.stored(self.client.put_blob_from_file(str(source), encoding_type="RS2"))
            with source.open("rb") as stream:
                by_stream = self.stored(self.client.put_blob_from_stream(stream))
            by_chunks = self.stored(self.client.put_blob_from_stream(OneWay(data)))
            self.assertEqual({by_file["blobId"]}, {by_stream["blobId"], by_chunks["blobId"]})
            # A deletable blob is bought anew each time.
            self.assertEqual(len({by_file["id"], by_stream["id"], by_chunks["id"]}), 3)
            self.client.get_blob_as_file(by_file["blobId"], str(target))
            self.assertEqual(target.read_bytes(), data)
            self.assertEqual(self.client.get_blob_as_stream(by_file["blobId"]).read(), data)
            self.assertEqual(self.client.get_blob_by_object_id(by_chunks["id"]), data)

    def test_options_and_metadata(self):
        data = self.random.randbytes(1000)
        blob = self.stored(self.client.put_blob(data, deletable=False, send_object_to=OWNER, epochs=3))
        metadata = self.client.get_blob_metadata(blob["blobId"])
        headers = {name.lower(): value for name, value in metadata.items()}
        self.assertEqual(headers["etag"], blob["blobId"])
        self.assertEqual(headers["content-length"], "1000")
        self.assertEqual(headers["cache-control"], "public, max-age=86400, stale-while-revalidate=3600")
        self.assertEqual(headers["x-content-type-options"], "nosniff")

    def test_errors_are_read_as_walrus_errors(self):
        # Those without a status are refused in plain text, as by Walrus's extractors.
        cases = [
            (lambda: self.client.get_blob("A" * 43), 404, "NOT_FOUND"),
            (lambda: self.client.get_blob_by_object_id("0x" + "11" * 32), 404, "NOT_FOUND"),
            (lambda: self.client.get_blob("no-id"), 400, None),
            (lambda: self.client.put_blob(b"x", epochs=0), 400, None),
            (lambda: self.client.put_blob(b"x", encoding_type="RS9"), 400, None),
            (lambda: self.client.put_blob(bytes(10_240 * 1024 + 1)), 413, None),
        ]
        for number, (call, code, status) in enumerate(cases):
            with self.subTest(case=number), self.assertRaises(WalrusAPIError) as raised:
                call()
            self.assertEqual(raised.exception.code, code)
            if status:
                self.assertEqual(raised.exception.status, status)
                self.assertTrue(raised.exception.details)


if __name__ == "__main__":
    WalrusPython.url = sys.argv.pop(1)
    unittest.main(verbosity=1)
