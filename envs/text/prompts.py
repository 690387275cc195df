"""From the prompts and replies of a task to the tokens that the agent reads."""

from collections.abc import Sequence
from typing import Any

from sb3_grpo.envs.tasks.pairs import as_item
from sb3_grpo.text.tokens import Tokenizer

# Stands for the agent's answer where a chat template is asked what follows it
_ANSWER = "ANSWER-OF-THE-AGENT"


class PromptFormat:
    """What the agent reads before and around a prompt. See :class:`TextEpisodeRules` for the parameters."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: bool = False,
        system_prompt: str | None = None,
        examples: Sequence[tuple[Any, str]] = (),
    ):
        if chat_template and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"chat_template=True needs a tokenizer of transformers with a chat template, and {tokenizer!r:.100} has none. "
                "Pass tokenizer=AutoTokenizer.from_pretrained(...) of a model that was trained to chat, or set the "
                "tokenizer's chat_template."
            )
        if system_prompt is not None and not chat_template:
            raise ValueError("system_prompt is the first message of a chat: set chat_template=True, too")
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.system_prompt = system_prompt
        self.examples = [as_item(pair, f"examples[{index}]") for index, pair in enumerate(examples)]

    def text(self, prompt: Any) -> str:
        """
        :param prompt: The prompt of an item: a text, or a list of messages
        :return: All of the text that the agent reads, e.g. for ``policy.generate``
        """
        if not self.chat_template:
            prompts = [*(item.prompt for item in self.examples), prompt]
            if not all(isinstance(each, str) for each in prompts):
                raise ValueError(f"A prompt that is a list of messages needs chat_template=True: {prompt!r:.200}")
            return "".join(f"{item.prompt}{item.answer}\n" for item in self.examples) + prompt
        messages = _messages(prompt)
        n_system = int(messages[0]["role"] == "system")
        system, rest = messages[:n_system], messages[n_system:]
        if self.system_prompt is not None and not system:
            system = [_message("system", self.system_prompt)]
        shots = [turn for item in self.examples for turn in (*_messages(item.prompt), _message("assistant", item.answer))]
        return self.tokenizer.apply_chat_template([*system, *shots, *rest])  # type: ignore[attr-defined]

    def encode_reply(self, text: str, last: int | None = None) -> list[int]:
        """
        :param text: A reply of the task
        :param last: The token that ended the answer to which it replies
        :return: The tokens that the agent reads between this answer and the next one
        """
        if not self.chat_template:
            return self.tokenizer.encode(text)
        talk = [_message("user", "?"), _message("assistant", _ANSWER), _message("user", text)]
        tokens = self.tokenizer.encode(self.tokenizer.apply_chat_template(talk).partition(_ANSWER)[2])  # type: ignore[attr-defined]
        # Templates begin with the token that ends an answer
        return tokens[1:] if tokens[:1] == [last] else tokens


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _messages(prompt: Any) -> list[dict[str, str]]:
    return [_message("user", prompt)] if isinstance(prompt, str) else [*prompt]
