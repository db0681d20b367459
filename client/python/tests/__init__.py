"""Tests of baton_client: `python -m unittest discover -s client/python/tests -t client/python`."""
