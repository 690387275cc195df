"""Parts of pages that run their own script and no other."""

import base64
import hashlib
import json
from typing import Any


def script_json(data: Any) -> str:
    """
    :param data: What a script reads
    :return: JSON that cannot end the element it stands in
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def source_of(text: str) -> str:
    """
    :param text: Of a script or a style
    :return: By what a content security policy knows it, and no other
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
