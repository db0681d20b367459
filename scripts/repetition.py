#!/usr/bin/env python3
"""Counts how many everyday questions a model answers with a repetition that only the limit ends.

repetition.py URL KEY [PARAMETERS]   URL and key of `baton serve`; PARAMETERS is JSON, such as '{"repetition_penalty": 1}'
Exit code 1 if more than one answer of fifty ends so.
"""

import concurrent.futures
import json
import sys
import urllib.request

QUESTIONS = """\
Write a poem about the sea.
Tell me a story about a dragon.
Explain quantum computing to a child.
Plan a weekend in Lisbon.
What is the capital of France?
How do I cook rice?
Why is the sky blue?
Give me three tips for sleeping better.
Write a short email to my boss asking for a day off.
What should I eat for breakfast?
Explain photosynthesis in simple words.
Tell me a joke.
How do I learn to play the guitar?
What are the benefits of walking every day?
Describe a sunset over the mountains.
How does a refrigerator work?
Write a birthday message for my grandmother.
What is the difference between a crocodile and an alligator?
How can I save money each month?
Summarise the plot of Romeo and Juliet.
What are some good names for a cat?
How do airplanes fly?
Give me a recipe for pancakes.
What is inflation?
How do I remove a coffee stain from a shirt?
Write a haiku about autumn.
Who was Albert Einstein?
What is the tallest mountain in the world?
List five fruits that are rich in vitamin C.
How do I write a good CV?
Tell me about the history of chocolate.
What should I pack for a week in Iceland?
How does the internet work?
Write a story about a lonely robot.
What is the meaning of friendship?
How do I train a puppy?
Explain the water cycle.
What are the planets of the solar system?
Give me ideas for a gift for my father.
How can I stop worrying?
Write a paragraph about why reading matters.
How do vaccines work?
What is a black hole?
How do I change a bicycle tyre?
Plan a healthy dinner for four people.
What is the best way to learn a language?
Describe your perfect day.
Why do cats purr?
How do I make a paper airplane?
What happened in 1969?
"""

# A repetition: less than this share of the last runs of six words is new.
NEW = 0.7
WORDS, TAIL = 6, 120


def repeats(text):
    """Whether the end of a text repeats itself."""
    words = text.split()[-TAIL:]
    runs = [tuple(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)]
    return bool(runs) and len(set(runs)) / len(runs) < NEW


def ask(url, key, parameters, seed, question):
    """The reason of an answer's end, and its text."""
    body = {"model": "auto", "seed": seed, "messages": [{"role": "user", "content": question}], **parameters}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    choice = json.load(opener.open(request, timeout=900))["choices"][0]
    return choice["finish_reason"], choice["message"]["content"]


def main():
    url, key, *rest = sys.argv[1:]
    parameters = json.loads(rest[0]) if rest else {}
    questions = QUESTIONS.splitlines()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, url, key, parameters, seed, text) for seed, text in enumerate(questions)]
        answers = [one.result() for one in asked]
    limited = [text for reason, text in answers if reason == "length"]
    endless = sum(map(repeats, limited))
    print(f"{len(answers)} answers: {len(limited)} at the limit, {endless} of them in a repetition")
    sys.exit(endless > 1)


if __name__ == "__main__":
    main()
