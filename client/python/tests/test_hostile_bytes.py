"""Changed bytes anywhere: every decoder answers with an error of this package, never with another exception."""

from __future__ import annotations

import random
import unittest
from collections.abc import Callable
from typing import Any

from baton_client import frames, heads
from baton_client.chain import open_blob
from baton_client.codec import decode_layout, encode, unpad, unpad_block
from baton_client.errors import BatonError
from baton_client.peerid import NodeAddress
from baton_client.signed import LINK, NODE_RECORD, RECEIPT
from baton_client.transport.wire import fields

from .vectors import h, load, root_keys

ROUNDS = 400


class HostileBytes(unittest.TestCase):
    def mutate(self, data: bytes, action: Callable[[bytes], Any]) -> None:
        draw = random.Random(len(data))
        for _ in range(ROUNDS):
            changed = bytearray(data)
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(len(changed))
                changed[at] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
            if draw.random() < 0.3:
                del changed[draw.randrange(len(changed)) :]
            try:
                action(bytes(changed))
            except BatonError:
                continue

    def test_frames_and_events(self) -> None:
        layouts = {"NodeFrame": frames.NODE_FRAME, "ReplyEvent": frames.REPLY_EVENT, "ClientFrame": frames.CLIENT_FRAME}
        for item in load("frames")["frames"]:
            layout = layouts[item["type"]]

            def both_ways(data: bytes, layout: Any = layout) -> None:
                value = decode_layout(layout, data)
                # One encoding of each value: a decoder that accepts bytes gives the same back. NaN has several.
                if "nan" not in repr(value):
                    self.assertEqual(encode(value, layout), data)

            self.mutate(h(item["body"])[:4000], both_ways)

    def test_signed_objects(self) -> None:
        kinds = {"Link": LINK, "Receipt": RECEIPT, "NodeRecord": NODE_RECORD, "HeadRecord": heads.HEAD_RECORD}
        for item in load("objects")["objects"]:
            if item["type"] in kinds:
                self.mutate(h(item["encoded"]), kinds[item["type"]].open_encoded)

    def test_blobs_heads_padding_and_protobuf(self) -> None:
        keys = root_keys()
        self.mutate(h(load("blobs")["blobs"][0]["blob"]), lambda data: open_blob(data, keys, 0))
        self.mutate(h(load("sealing")["padding"][0]["padded"]), lambda data: unpad(data, 256))
        self.mutate(h(load("exchange")["padded"][0]["padded"])[:3000], lambda data: unpad_block(data, 1024))
        self.mutate(b"\x0a\x24" + bytes(36) + b"\x12\x40" + bytes(64), fields)
        self.mutate(b"/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWQJ8j5", lambda data: NodeAddress.parse(data.decode("latin-1")))

    def test_a_length_beyond_the_bytes_allocates_nothing(self) -> None:
        for item in load("frames")["frames"][:9]:
            body = h(item["body"])
            for at in range(4, min(len(body) - 8, 200)):
                changed = body[:at] + b"\xff" * 8 + body[at + 8 :]
                try:
                    decode_layout(frames.CLIENT_FRAME, changed)
                except BatonError:
                    continue


if __name__ == "__main__":
    unittest.main()
