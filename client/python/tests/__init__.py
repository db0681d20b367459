"""Tests of baton_client: `python -m unittest discover -s client/python/tests -t client/python`."""

import logging

# The tests' event loops run in debug mode, which reports every slow step of a busy machine.
logging.getLogger("asyncio").setLevel(logging.ERROR)
