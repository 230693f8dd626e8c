"""The studio: the application in a browser, and the OpenAI HTTP API.

jobs        one worker per model, queues, snapshots for watchers
models      folders, variants, measured speeds, sessions
album       pictures on disk
uploads     pictures from outside, decoded with care
core        ideas, pictures, selections, edits, comparisons, as jobs
page_api    what the page asks          page/   the page: HTML, CSS, ES modules; no build step
openai_api  what OpenAI clients ask: models and pictures; openai_text: completions and chat; openai_embeddings
waiting     what these share: strict requests, errors in OpenAI's form, clients that go away
reference   the API's description and its page          metrics   counters for Prometheus
safety      the guard before both
server      all of it behind one port
terminal    the same flow as questions and answers
"""
