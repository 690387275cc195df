"""Parts of HTML pages that only run their own script."""

import base64
import hashlib
import json
from typing import Any


def script_json(data: Any) -> str:
    """
    :param data: Data for a script
    :return: JSON that cannot close the element that contains it
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def source_of(text: str) -> str:
    """
    :param text: Text of a script or a style
    :return: Its source expression in a content security policy, which allows no other script or style
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
