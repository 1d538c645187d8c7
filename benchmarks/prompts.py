"""English-like text of a controlled length, the same for the same seed on every machine.

Every word here is one token (with its leading space) in the vocabularies of current chat models, so the number of words
and full stops is the number of tokens, within one or two. A vocabulary of 512 tokens needs about three for a word.
"""

from __future__ import annotations

import random


def words(text: str) -> list[str]:
    """Split a list written as text."""
    return text.split()


ADJECTIVES = words(
    "old new small large young early late open public local common general simple single current recent final "
    "main major human natural social national private special clear dark deep dry easy fair fast "
    "fine free full good great green happy hard heavy high huge kind light long low modern narrow quick quiet "
    "rich rough safe sharp short slow soft strong sweet tall thin warm wide wild wise wooden yellow bright brown"
)
NOUNS = words(
    "river market teacher house garden city doctor farmer window story village school station engine bridge "
    "mountain letter picture question answer problem system library kitchen table paper number record "
    "family child mother father friend neighbor captain soldier artist writer driver worker student "
    "forest island ocean valley road field tree flower bird horse dog cat fish ship train car wheel box "
    "door floor wall roof room street corner shop office church court king queen law book page word name "
    "year month week night morning evening summer winter spring storm rain snow wind fire water stone iron gold"
)
VERBS = words(
    "carries follows finds keeps builds opens closes leaves reaches holds watches hears answers visits "
    "helps calls draws paints writes reads learns teaches sells buys brings takes gives sends moves turns "
    "covers crosses enters passes serves saves shows tells wants needs likes loves knows meets joins makes"
)
PREPOSITIONS = words("near behind under over beyond before after with without toward across along around inside beside")


def sentence(rng: random.Random) -> list[str]:
    """One sentence of 11 words and a full stop: 12 tokens."""
    adjective, noun, verb = ADJECTIVES, NOUNS, VERBS
    line = ["the", rng.choice(adjective), rng.choice(noun), rng.choice(verb), "the", rng.choice(adjective)]
    line += [rng.choice(noun), rng.choice(PREPOSITIONS), "a", rng.choice(adjective), rng.choice(noun)]
    return [" The", *(f" {word}" for word in line[1:]), "."]


def prose(rng: random.Random, n_words: int) -> str:
    """Random sentences, cut after `n_words` words and full stops; no leading space."""
    pieces: list[str] = []
    while len(pieces) < n_words:
        pieces += sentence(rng)
    return "".join(pieces[:n_words]).lstrip()
