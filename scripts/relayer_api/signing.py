"""Signs requests to a relayer by its HTTP scheme (docs/MEMORY.md, "Signed requests over HTTP").

Schemathesis loads this file as its hooks, and the generated client signs with it too. BATON_TEST_SEED is the owner's key.
"""

import hashlib
import os
import time
import uuid

import requests
import schemathesis
from nacl.signing import SigningKey


HEADERS = ("x-public-key", "x-signature", "x-timestamp", "x-nonce", "x-account-id")


def headers(key, method, path, body):
    """The headers of a request to a path with its query."""
    public = bytes(key.verify_key)
    # The Sui address of an Ed25519 key: scheme 0, then the key.
    account = "0x" + hashlib.blake2b(b"\0" + public, digest_size=32).hexdigest()
    timestamp, nonce = str(int(time.time())), str(uuid.uuid4())
    signed = ".".join([timestamp, method, path, hashlib.sha256(body).hexdigest(), nonce, account])
    return dict(zip(HEADERS, [public.hex(), key.sign(signed.encode()).signature.hex(), timestamp, nonce, account]))


class Signature(requests.auth.AuthBase):
    """Signs a request as it is sent: after its body was written."""

    def __init__(self, key):
        self.key = key

    def __call__(self, request):
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        request.headers.update(headers(self.key, request.method, request.path_url, body))
        return request


def whole(value):
    """A value with whole numbers as integers. JSON Schema takes 1.0 for one; strict readers of JSON do not."""
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.serializer("application/x-ndjson")
def json_lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def map_body(context, body):
    return whole(body)


@schemathesis.hook
def before_call(context, case, kwargs):
    # A request that lacks a header of the signature stays as it is: the tester looks whether it is refused.
    if all(name in (case.headers or {}) for name in HEADERS):
        kwargs["auth"] = Signature(SigningKey(bytes.fromhex(os.environ["BATON_TEST_SEED"])))
