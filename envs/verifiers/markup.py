"""One way to write each text, and the answer that a text gives in the end. docs/text_tasks.md explains this in words."""

# ruff: noqa: RUF001  the signs that are replaced

import re
import unicodedata

from latex2sympy2_extended.math_normalization import extract_boxed_content

NUMBER = r"(?:\d+\.?\d*(?:[eE][-+]?\d{1,3}(?!\d))?|\.\d+)"
FUNCTIONS = r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)|sinh|cosh|tanh|log|ln|exp|sqrt"

# Pattern -> what is written instead, one after the other. ␣ is a blank at the end. The first part is the layout of an answer:
# what is thought, HTML, colors, and a last line that continues the one before, or repeats its end
_TABLE = r"""
(?s)\A.*(?:</think>|<answer>)|</answer>.* ->
(?s)\A.*<think>.* ->
<(b|strong|i|em|u|span|mark|code)\b[^<>]*>([^<>\n]*)</\1> -> **\2**
</?(?:p|div|br|center)\b[^<>]*> -> \n
\\(?:text)?color\s*\{\w+\}\s* ->
(?m)^(?:\$\$|```|\\[\[\]])$\n? ->
\\fbox|\\boxed\s*\{\s*\\boxed -> \\boxed
(?i)((?:\b(?:answer|is|are)|[:=])[^\w\n]{,6})\n+ -> \1␣
− -> -
([=:]\s?|[a-z]{2} )[*`$]{,3}([^\n]{1,60}?)[*`$]{,3}( [a-z]+)?\.?\n\s*[*`$]{,3}\2[*`$.]{,4}$ -> \1$\2$\3

[⁰¹²³⁴-⁹⁺⁻ⁿ]+ -> ^{\g<0>}
[₀-₉]+ -> _{\g<0>}
[¼-¾⅐-⅞] -> ␣\g<0>
(?<![.,;\s])\s*[.,;]\s*$|^\s*"|"\s*$ ->
^\s*(?i:so|thus|hence|therefore|then)\b,?\s* ->
[\u200b-\u200d\u2060\ufeff] ->
[−–] -> -
[⁄÷] -> /
[×·⋅∙] -> *
。 -> .
∪ -> \\cup␣
∅ -> \\emptyset␣
∞ -> \\infty␣
≤ -> \\le␣
≥ -> \\ge␣
≠ -> \\ne␣
± -> \\pm␣
≡ -> \\equiv␣
∈ -> =
∠ -> \\angle␣
ℝ -> \\mathbb{R}
√\s*(\d+) -> \\sqrt{\1}
∛\s*(\d+) -> \\sqrt[3]{\1}
√ -> \\sqrt␣
° -> \\text{degree}
α -> \\alpha␣
β -> \\beta␣
γ -> \\gamma␣
δ -> \\delta␣
ε -> \\epsilon␣
θ -> \\theta␣
λ -> \\lambda␣
μ -> \\mu␣
π -> \\pi␣
ρ -> \\rho␣
σ -> \\sigma␣
τ -> \\tau␣
φ -> \\phi␣
ω -> \\omega␣
Δ -> \\Delta␣
Ω -> \\Omega␣
(?<![\w)}*_`])(\*{1,3}|_{1,2}|`+)(?=[^\s*_`])([^*`\n]*?[^\s*_`])\1(?![\w({]) -> \2
\\\\\s*\[[^\[\]]*\] -> \\\\
(?<!\\)\\[()\[\]] -> ␣
(?<=\d)(?:\\[,;:! ]|\{,\}|,\\!|\s)(?=\d{3}(?![\d/])) -> ,
(?<![\w.,(\[])(?<!\\\{)(\d{1,3}),(\d{3})(?:,(\d{3}))?(?:,(\d{3}))?(?:,(\d{3}))?(?![\d,]) -> \1\2\3\4\5
\\text\s*\{\s*\\?\$\s*\}|\\\$(?=\s*[\d.])|^\$(?=[\d.]+\s*$)|\bUSD\b -> \\text{dollar}
\\text\s*\{\s*€\s*\}|€|\\euro(?![A-Za-z])|\bEUR\b -> \\text{euro}
\\text\s*\{\s*£\s*\}|£|\\pounds(?![A-Za-z])|\bGBP\b -> \\text{pound}
\\text\s*\{\s*¥\s*\}|¥|\bJPY\b -> \\text{yen}
(?<![\w}])\\text\{(dollar|euro|pound|yen)\}\s*(\d[\d.]*|\.\d+) -> \2\\text{\1}
\\?\$ ->
\\!|\\(?:(?:display|text)style|left|right|[bB]igg?[lr]?)(?![A-Za-z]) ->
(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|(?<=\S)~(?=\S) -> ␣
\\(?:math(?:rm|bf|it|sf)|bm|boldsymbol)\s*\{\s*(\w)\s*\} -> ␣\1␣
\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf)|mbox|emph)\s*\{\s* -> \\text{
(?<![\w}])\\text\{([A-Za-z]|[^A-Za-z{}]*\d[^A-Za-z{}]*)\s*\} -> \1
\\text\{([A-Za-z/ ]+)\^\{?(\d)\}?\s*\} -> \\text{\1\2}
^(?:\\text|\\underline\s*|)\{((?:[^{}]|\{[^{}]*\})*)\}$ -> \1
<sup>([^<>]*)</sup> -> ^{\1}
<sub>([^<>]*)</sub> -> _{\1}
(?<=\d)\s*(?:\\text\{)?[aA]\.?\s?[mM](?![A-Za-z])\.?\s*\}? -> ␣am
(?<=\d)\s*(?:\\text\{)?[pP]\.?\s?[mM](?![A-Za-z])\.?\s*\}? -> ␣pm
^(\d\d?)(?= [ap]m$) -> \1:00
^0(?=\d:\d\d [ap]m$) ->
^00?(:\d\d)$ -> 12\1 am
^13(:\d\d)$ -> 1\1 pm
^14(:\d\d)$ -> 2\1 pm
^15(:\d\d)$ -> 3\1 pm
^16(:\d\d)$ -> 4\1 pm
^17(:\d\d)$ -> 5\1 pm
^18(:\d\d)$ -> 6\1 pm
^19(:\d\d)$ -> 7\1 pm
^20(:\d\d)$ -> 8\1 pm
^21(:\d\d)$ -> 9\1 pm
^22(:\d\d)$ -> 10\1 pm
^23(:\d\d)$ -> 11\1 pm
\s!=|(?<!\d)!= -> \\ne␣
<=|\\leq(?:slant)?(?![A-Za-z]) -> \\le␣
>=|\\geq(?:slant)?(?![A-Za-z]) -> \\ge␣
\\neq(?![A-Za-z]) -> \\ne␣
\\lt(?![A-Za-z]) -> <
\\gt(?![A-Za-z]) -> >
\\in(?![A-Za-z]) -> =
(?:^|(?<==))\s*(?:\\mathbb\s*\{?R\}?|(?:\\text\{\s*)?(?i:all )(?i:real numbers|reals)\s*\}?)$ -> (-\\infty,\\infty)
\\langle(?![A-Za-z])|⟨ -> (
\\rangle(?![A-Za-z])|⟩ -> )
^(\d+)\s*(?:to|\\text\{to\s*\})\s*(\d+)$ -> \1:\2
\\(?:times|cdot|ast)(?![A-Za-z]) -> *
\\div(?![A-Za-z]) -> /
\\(?:bar|dot)(?![A-Za-z]) -> \\overline
\\varnothing -> \\emptyset
\((\w+)\)\s*_ -> \1_
^\(?([A-Z])\)$ -> \1
\*\* -> ^
\\[lr]?vert(?![A-Za-z]) -> |
\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z]) -> \\text{degree}
\\(sin|cos|tan|cot|sec|csc)(\^\{\d\})?\s*([\w.]+)\\text\{degree\} -> \\\1\2(\\frac{\3\\pi}{180})
\\(sin|cos|tan|cot|sec|csc)(\^\{\d\})?\s*\(\s*([\w.]+)\\text\{degree\}\s*\) -> \\\1\2(\\frac{\3\\pi}{180})
\\(sin|cos|tan|cot|sec|csc)(\^\{\d\})?\s*\{\s*([\w.]+)\\text\{degree\}\s*\} -> \\\1\2(\\frac{\3\\pi}{180})
(?<=[\d}])\s*(?:\\?%|per\s?cent\b|\\text\{(?:percent|\\?%)\s*\}) -> %
(?<![\\A-Za-z])(arc(?=sin|cos|tan)|)(sinh?|cosh?|tanh?|cot|sec|csc|log|ln|exp|sqrt|pi)(?![A-Za-z]) -> \\\1\2␣
(?:\\left\s*)?\[?\s*\\begin\{(?:array\}\s*\{[^{}]*\}|[pb]?matrix\}) -> ((
\\end\{(?:array|[pb]?matrix)\}\s*\]? -> ))
\\\\ -> ),(
& -> ,
\\[dtc]frac(?![A-Za-z]) -> \\frac
\\frac\s*(\d) -> \\frac{\1}
(\\frac\s*\{[^{}]*\})\s*(\w) -> \1{\2}
\\sqrt\s*\(([^()]*)\) -> \\sqrt{\1}
\\sqrt\s*(\w) -> \\sqrt{\1}
\^\s*\(([^()]*)\) -> ^{\1}
([_^])\s*(-?\d+|[A-Za-z]) -> \1{\2}
(?<![\w.)}^/])(\d+)\s*/\s*(\d+)(?![\w.(/]) -> \\frac{\1}{\2}
(?<=\d)\s+(?=\\frac) ->
\\p?mod\s*\{?\s*(\w+)\s*\}?|\(mod\s*(\w+)\s*\)|(?<![\\A-Za-z(])mod\s+(\w+) -> mod\1\2\3
\\log_\{(\d+)\}\s*(\d+) -> \\log_{\1}(\2)
(?<=_\{)\\text\{zero\}|^(?i:zero)(?=$| [a-z]+$) -> 0
(?<=_\{)\\text\{one\}|^(?i:one)(?=$| [a-z]+$) -> 1
(?<=_\{)\\text\{two\}|^(?i:two)(?=$| [a-z]+$) -> 2
(?<=_\{)\\text\{three\}|^(?i:three)(?=$| [a-z]+$) -> 3
(?<=_\{)\\text\{four\}|^(?i:four)(?=$| [a-z]+$) -> 4
(?<=_\{)\\text\{five\}|^(?i:five)(?=$| [a-z]+$) -> 5
(?<=_\{)\\text\{six\}|^(?i:six)(?=$| [a-z]+$) -> 6
(?<=_\{)\\text\{seven\}|^(?i:seven)(?=$| [a-z]+$) -> 7
(?<=_\{)\\text\{eight\}|^(?i:eight)(?=$| [a-z]+$) -> 8
(?<=_\{)\\text\{nine\}|^(?i:nine)(?=$| [a-z]+$) -> 9
(?<=_\{)\\text\{ten\}|^(?i:ten)(?=$| [a-z]+$) -> 10
(?<=_\{)\\text\{eleven\}|^(?i:eleven)(?=$| [a-z]+$) -> 11
(?<=_\{)\\text\{twelve\}|^(?i:twelve)(?=$| [a-z]+$) -> 12
(?<=_\{)\\text\{sixteen\} -> 16
^((?:(?!\\pm)[^,])*)\\pm((?:(?!\\pm)[^,])*)$ -> \1+\2,\1-\2
;(?!.*(?:[<>]|\\[lg]e)) -> ,
,?\s*(?:\bor\b|\\text\{or\s*\})(?=.*(?:[<>]|\\[lg]e)) -> ;
,?\s*(?:\band\b|\bor\b|\\text\{(?:and|or)\s*\}) -> ,
(?<=\d)(?=(?:[ckm]m|[km]?g|m?l|ft|mph)(?![A-Za-z])) -> ␣
(?<=[\s{/])km(?![A-Za-z]) -> kilometer
(?<=[\s{/])cm(?![A-Za-z]) -> centimeter
(?<=[\s{/])mm(?![A-Za-z]) -> millimeter
(?<=[{/])m(?![A-Za-z])|(?<=[\d\s])m(?=/(?:s|h|min)(?![A-Za-z])) -> meter
(?<=[\s{/])kg(?![A-Za-z]) -> kilogram
(?<=[{/])g(?![A-Za-z]) -> gram
(?<=[{/])[lL](?![A-Za-z]) -> liter
(?<=[\s{/])m[lL](?![A-Za-z]) -> milliliter
(?<=[\s{/])(?:ft|feet)(?![A-Za-z]) -> foot
(?<=[\s{])mph(?![A-Za-z]) -> mile/hour
(?<=[\s{/])hrs?(?![A-Za-z]) -> hour
(?<=[{/])h(?![A-Za-z]) -> hour
(?<=[\s{/])min(?![A-Za-z]) -> minute
(?<=[\s{/])sec(?![A-Za-z]) -> second
(?<=[{/])s(?![A-Za-z]) -> second
\s*\bper\s+ -> /
(met|lit)re -> \1er
\binches\b -> inch
(?<=[a-z]{3})s(?=\s*(?:[}/,\d]|$)) ->
square\s+([a-z]+) -> \g<1>2
cubic\s+([a-z]+) -> \g<1>3
(?<=[\d}])\s+([A-Za-z]{4}[A-Za-z /]*)(?:\^\{(\d)\}|(\d)(?!\w))? -> \\text{\1\2\3}
\\text\{([^{}]*?)\s*\}\^\{(\d)\} -> \\text{\1\2}
\\text\{([^{}]*?)\s+\} -> \\text{\1}
(?<=\})\s+(?=\d) ->
"""
_LAYOUT, _SAME = (
    [
        (re.compile(pattern, re.ASCII), same.strip().replace("␣", " "))
        for pattern, same in (line.split(" ->") for line in part.strip().splitlines())
    ]
    for part in _TABLE.split("\n\n")
)
_SENTENCE = re.compile(r"(?<=[.!?。])\s+|\n+")
_ANNOUNCED = re.compile(
    r"(?i)\A(?:.*[,;:]\s+)??(?:[\s#>*_`$-]|\\text\w*\{|(?:so|thus|hence|then|therefore|and|finally|is|the|my|our|final|correct|right)\b)*"
    r"(?:(?:answer|result|solution|choice|total|value|matrix|最?终?答案)[*_`\s]*"
    r"(?:(?:is|are|(?:would|will|must) be)\b\s*:?|[:：=是]+|(?<=\s)(?![A-Za-z]{2}))|#{4}|"
    r"(?:the|it)\s+(?:(?!(?:not|never|wrong|false|incorrect|doubt|opposite|negative|reciprocal|inverse|root|twice|double|"
    r"half|minus|plus|times|less|without|if|it|\w+n't)\b)[^\s,;:]+\s+)*?(?:is|are|was|equals|costs|takes|gives|yields)\b|"
    r"we\s+(?:get|have|find|obtain|conclude)\b(?:\s+that\b)?)[*_`}\\\s]*(?<!\\)(.*?)[*_`.\s]*\Z"
)
_MARKED = re.compile(r"(\*\*|`|(?<!\\)\$)((?:[^*`$]|\\\$|(?<=\*\*)\$(?=\d))+)\1")
# What retracts an answer, or changes a number that it follows
_TAKEN_BACK = re.compile(
    r"(?i)\b(?:not|never|n?either|nor|or|maybe|perhaps|possibly|except|unless|than|least|most|about|around|roughly|approximately|"
    r"almost|doubt|wrong|incorrect|false|dozen|hundred|thousand|[mb]illion|squared|cubed|factorial|doubled|tripled|halved|twice|half|plus|"
    r"minus|times|negative|opposite|reciprocal|root|under|below|above|over|exceeds|but|between|wait|actually|sorry|mistake)s?\b|"
    r"\bno[,:.]|n't\b|[<>~≈±]"
)
# In a product, under a root or in a bracket, a box is only a part of the answer
_BEFORE = re.compile(
    r"(?s)(?:.*(?:(?<![<>!\\])[=:.,;：是]|\n|\b(?i:again|is|are|was|were|be|gets?|finds?|obtain|ha[sv]e?|gives?|yields?|equals|costs?|takes?|"
    r"makes?|sells?|earns?|needs?|pays?|spends?|at|to|that|answer|result|area|so|hence|thus|therefore)))?[\s$*`&>]*(?:\\[(\[])?[\s$]*(?:(?<!\w)\{)?"
)
_AFTER = re.compile(r"[\s$*`.。,;)}\]\\]*+(?:(?:(?<=[\s$])|\\text\s*\{\s*)[A-Za-z(]{2}[^\d^%!/+=]*)?")


def plain(text: str) -> str:
    """
    :param text: Any text
    :return: The text with one way to write each sign, and without markup
    """
    # NFKC turns what the first pass has marked into digits: 2^{\u00b2}
    for _ in range(2):
        for pattern, same in _SAME:
            text = pattern.sub(same, text)
        text = unicodedata.normalize("NFKC", text).strip()
    return text


def final_answer(text: str) -> tuple[str, str] | None:
    """
    :param text: Text written by an agent
    :return: What it says to be the answer in the end, and what follows in the same sentence. None if this is not certain
    """
    for pattern, same in _LAYOUT:
        text = pattern.sub(same, text.strip())
    before, box, after = text.rpartition(r"\boxed")
    sentence = _SENTENCE.split(before if box else text)[-1]
    if box:
        after = after.lstrip()[len(extract_boxed_content(box + after, "last")) + 2 :]
        content = extract_boxed_content(text[len(before) - len(sentence) :], "all")
    elif len(sentence) > 1000:
        return None
    elif announced := _ANNOUNCED.fullmatch(sentence):
        return final_answer(announced[1])
    elif len(marked := [*_MARKED.finditer(sentence)]) == 1 and re.search("[A-Za-z]{2}", sentence[: marked[0].start()]):
        before, content, after = sentence[: marked[0].start()], marked[0][2], sentence[marked[0].end() :]
        sentence = before
    else:
        return (text, "") if sentence == text else None
    clause = re.split(r"[,;]\s", sentence)[-1]
    if _TAKEN_BACK.search(f"{clause} . {after}"):
        return None
    after = _SENTENCE.split(after)[0]
    if _BEFORE.fullmatch(before) and _AFTER.fullmatch(after):
        return _ANNOUNCED.sub(r"\1", content), after
    return None


def reference_answer(text: str) -> str:
    """
    :param text: A reference
    :return: The right answer: all of it, or what stands in the last box, or after ####, of a solution. Empty if there is none
    """
    text = plain(extract_boxed_content(text, "last").rpartition("####")[2])
    return text if re.fullmatch(r".*\w.*", text) else ""
