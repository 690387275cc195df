"""Formulas as MathML, with explanations of their symbols."""

import re
from html import escape

import latex2mathml.converter

# Operators after which a minus is a sign, as in "= -1". The converter does not mark it, and browsers take it for a difference
_BEFORE_SIGN = "|".join(f"&#x{ord(each):05X};" for each in "=,([{<>/\N{MIDDLE DOT}\N{LEFTWARDS ARROW}")
# An exponent to the converter; a prime is raised as it is, and would be hard to see
_PRIME = re.compile("<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")
_BAR = re.compile(f'<mo(?: stretchy="false")?>(&#x{ord("|"):05X};</mo>)')


def math(latex: str, display: bool = False) -> str:
    """
    :param latex: A formula
    :param display: Whether the formula is on its own line
    :return: MathML, which browsers render without scripts or network access
    """
    formula = latex2mathml.converter.convert(latex, display="block" if display else "inline")
    # The converter writes "log x" without a space
    formula = re.sub(r"(?<!<msub>)<mi>log</mi>(?=<m[^on])", '<mi>log</mi><mspace width="0.17em"></mspace>', formula)
    formula = re.sub(rf"(<mo[^>]*>(?:{_BEFORE_SIGN})</mo>)<mo>&#x02212;</mo>", r'\1<mo form="prefix">&#x02212;</mo>', formula)
    # The converter gives names such as "min", and the bars of a norm, the spacing of a relation
    formula = re.sub(r"<mo>([A-Za-z]{2,})</mo>(<mo )?", _name, formula)
    formula = _PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', formula)
    formula = _BAR.sub(r'<mo lspace="0" rspace="0" stretchy="false">\1', formula)
    # Allow a line break at a large space, if the line is too short
    first, *others = formula.split('<mspace width="2em" />') if display else [formula]
    return "</mrow></math>".join([first, *(f"{first[: first.index('<mrow>')]}<mrow>{other}" for other in others)])


def _name(found: re.Match[str]) -> str:
    """
    :param found: Match of a name, including the beginning of a bracket if one follows
    :return: The name with a space before it, and one after it unless a bracket follows
    """
    before = found.string[: found.start()]
    left = "0.17em" if re.search(r"</(?!mo>)\w+>$", before) else "0"
    return f'<mo lspace="{left}" rspace="{"0" if found[2] else "0.17em"}">{found[1]}</mo>{found[2] or ""}'


def _inside(latex: str) -> str:
    """
    :param latex: A formula
    :return: MathML without its outermost tags
    """
    content = math(latex)
    content = content[content.index("<mrow>") + len("<mrow>") :]
    return content[: content.rindex("</mrow>")]


def explained(latex: str, symbols: dict[str, str]) -> str:
    """
    :param latex: A formula
    :param symbols: Meaning (HTML) of each symbol (LaTeX). If a symbol is part of another one, the longer one comes first
    :return: HTML of the formula, whose symbols can be hovered over and focused, and the list of their meanings
    :raises ValueError: if the formula does not contain a symbol
    """
    formula = math(latex, display=True)
    marks = []
    for number, symbol in enumerate(symbols):
        inside = _inside(symbol)
        if inside not in formula:
            raise ValueError(f"The formula {latex} has no {symbol}.")
        # Replace the symbol by a mark, so that other symbols are not found within it
        mark = f"\x00{number}\x00"
        formula = formula.replace(inside, mark)
        marks.append((mark, inside))
    for (mark, inside), meaning in zip(marks, symbols.values(), strict=True):
        first, rest = formula.split(mark, 1)
        # Only the first occurrence is reachable by the tab key
        attributes = f'class="symbol" data-meaning="{escape(meaning)}"'
        formula = f'{first}<mrow {attributes} tabindex="0">{inside}</mrow>' + rest.replace(
            mark, f"<mrow {attributes}>{inside}</mrow>"
        )
    rows = "".join(f"<div><dt>{math(symbol)}</dt><dd>{meaning}</dd></div>" for symbol, meaning in symbols.items())
    return f'<div class="formula"><div class="scroll">{formula}</div><dl class="symbols">{rows}</dl></div>'
