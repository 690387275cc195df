"""Finds the single final answer in a text, and takes off the markup around it. docs/text_tasks.md explains this in words."""

import re
import sys

import cloudpickle

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Longer answers are endless reasoning, or designed to take time
_MAX_LENGTH = 500
# Of markup
_MAX_LAYERS = 6

# Other ways to write the same
_CHARACTERS = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u00a0": " ",
        "π": r"\pi ",
        "\u00d7": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "√": r"\sqrt ",
    }
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "\u222a": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "}
    | {"∞": r"\infty ", "°": r"^\circ ", "²": "^2 ", "³": "^3 "}
)
_SYNONYMS = [
    (re.compile(pattern, re.ASCII), same)
    for pattern, same in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:text(?:bf|it|rm|sf|tt|normal)|math(?:rm|bf|it|sf)|mbox|emph|underline|bm|boldsymbol)\s*\{", r"\\text{"),
        (r"\\(?:(?:display|text)style|left|right|[bB]igg?[lr]?)(?![A-Za-z])", ""),
        (r"\\(l|g|n)eq(?![A-Za-z])", r"\\\1e"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing", r"\\emptyset"),
        (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ"),
        # Between thousands, and elsewhere
        (r"(?<=\d)(?:\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d))", ","),
        (r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])", " "),
        (r"(?i)(?<=\d)\s*(?:percent\b|\\text\s*\{\s*(?:percent|\\?%)\s*\})", "%"),
        (r"\\text\s*\{\s*(and|or)\s*\}", r" \1 "),
        # The announcement of an answer, and what is only printed upright. After a number, a letter is a unit
        (r"(?i)\\text\s*\{([^{}]*\banswer\b[^{}]*)\}", r"\1"),
        (r"(?<![\d}])\\text\s*\{\s*([A-Za-z]|[\d.]+)\s*\}", r"\1"),
    )
]
# Around an answer
_PAIRS = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")]
_PAIRS += [(mark, mark) for mark in ("***", "**", "*", "__", "_", "```", "`")]
_AROUND = re.compile(r"\\(?:text|boxed|fbox)\s*\{")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_PHRASE = re.compile(r"(?i)(?<![A-Za-z])answer[*_`]*\s*(?:is\s*:|is\b|:|=|\n)")
_BEFORE_PHRASE = re.compile(
    r"(?i)(?:[\s,:*#_`>-]|(?:so|thus|hence|then|therefore|and|finally|in conclusion|the|my|our|final|correct|right)\b)*"
)
# Right before a box, these retract its content
_TAKEN_BACK = re.compile(
    r"(?i)(?:\b(?:not|never|nor|neither|either|or|maybe|perhaps|possibly|except|unless|than|about|around|approximately|roughly|"
    r"almost|wrong|incorrect|false)|n't|[<>~≈±]|\\(?:ne|le|ge|approx|pm|sim|lnot|neg)|[-+*/^!_])\W*$"
)
# In a product, under a root or in a bracket, a box is only a part of the answer
_PART_OF = re.compile(
    r"(?:\d\}?\ *|\)\}?|(?<![A-Za-z\\])[A-Za-z]|(?<!\\)\(\s*|"
    r"\\(?:sqrt|frac|log|ln|exp|a?sin|a?cos|a?tan|div|times|cdot|bar|hat|overline)\s*)$"
)
# Possessive: with backtracking, a box and a page of blanks would exceed the time limit of an answer
_AFTER_BOX = re.compile(r"[\s$.*_`]*+(?:\\[)\]])?[\s$.*_`]*+")


def plain(text: str) -> str:
    """
    :param text: Any text
    :return: The text with one way to write each symbol
    """
    text = text.translate(_CHARACTERS)
    for pattern, same in _SYNONYMS:
        text = pattern.sub(same, text)
    return text.strip()


def final_answer(text: str) -> str | None:
    """
    :param text: Text written by an agent
    :return: Its single final answer, without markup around it, None if there is none or more than one
    """
    found: str | None = plain(text)
    # In \boxed{\text{The answer is 42}} there is another one
    for _ in range(_MAX_LAYERS):
        if found is None:
            return None
        text = _without_markup(found)
        if _BOX.search(text):
            found = _boxed(text)
        elif "####" in text:
            found = text.rpartition("####")[2] if text.count("####") == 1 else None
        elif phrases := [*_PHRASE.finditer(text)]:
            found = _after_phrase(text, phrases)
        else:
            return None if "\n" in text or len(text) > _MAX_LENGTH else text
    return None


def _group_end(text: str, start: int) -> int:
    """
    :param text: LaTeX
    :param start: Position after an opening brace
    :return: Position after the brace that closes it, 0 if there is none
    """
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return 0


def _boxed(text: str) -> str | None:
    contents, end = [], 0
    while match := _BOX.search(text, end):
        end = _group_end(text, match.end())
        before = text[max(0, match.start() - 60) : match.start()]
        if not end or _PART_OF.search(before) or _TAKEN_BACK.search(before.rstrip("$ \\([*`")):
            return None
        contents.append(text[match.end() : end - 1])
    return contents[0] if len(set(contents)) == 1 and _AFTER_BOX.fullmatch(text[end:]) else None


def _after_phrase(text: str, phrases: list[re.Match[str]]) -> str | None:
    phrase, after = phrases[-1], text[phrases[-1].end() :].strip()
    before = re.split(r"[.!?]\s|\n", text[: phrase.start()])[-1]
    if len(phrases) > 1 or not _BEFORE_PHRASE.fullmatch(before):
        return None
    marks = re.findall(r"\*+|_+|`+", before + phrase[0])
    # Bold print that begins before the announcement ends after it, or after the answer
    if len(marks) % 2 and after.startswith(marks[-1]):
        return after.removeprefix(marks[-1])
    return after.rstrip(".").removesuffix(marks[-1]) if len(marks) % 2 else after


def _without_markup(text: str) -> str:
    for _ in range(_MAX_LAYERS):
        text = text.strip()
        if text[-1:] in (".", ",", ";") and text[-2:-1] not in (".", ",", ";"):
            text = text[:-1].rstrip()
        for begin, end in _PAIRS:
            inside = text[len(begin) : -len(end)]
            if text.startswith(begin) and text.endswith(end) and inside and not {begin, end} & {*_marks(inside)}:
                text = inside
        if (match := _AROUND.match(text)) and _group_end(text, match.end()) == len(text):
            text = text[match.end() : -1]
    return text.strip()


def _marks(text: str) -> list[str]:
    return re.findall(r"(?<!\\)\$\$?|\\[()\[\]]|\*+|_+|`+", text)
