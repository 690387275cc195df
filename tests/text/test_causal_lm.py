import zipfile
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch as th
from digit_texts import LENGTH, Digits, growing_texts
from language_models import CONFIGS, ROWS, SPACES, SameDigitEnv, make_grpo, make_language_model

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.envs import CharTokenizer, VerifierTextVecEnv
from sb3_grpo.text.causal_lm import CausalLMPolicy
from sb3_grpo.text.decoding import CachedReader
from sb3_grpo.text.tokens import PAD, TokenSpace
from sb3_grpo.text.tree import TokenSteps
from stress.resume import digest

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

LORA = {"r": 4, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"]}


def make_policy(model: Any = "llama", **kwargs: Any) -> Any:
    if model in CONFIGS:
        model = make_language_model(model)
    policy = CausalLMPolicy(*SPACES, lambda _: 1e-2, model=model, **kwargs)
    policy.set_training_mode(False)
    return policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llama")
    make_language_model().save_pretrained(path)
    return str(path)


OBSERVATIONS = th.as_tensor(growing_texts(6, 8)[-1])


def log_probs(policy: Any, observations: th.Tensor = OBSERVATIONS) -> th.Tensor:
    return policy.get_distribution(observations).distribution.logits


def assert_same(first: Any, second: Any) -> None:
    th.testing.assert_close(log_probs(first), log_probs(second), rtol=0, atol=1e-6)


def assert_different(first: Any, second: Any) -> None:
    assert (log_probs(first) - log_probs(second)).abs().max() > 1e-2


@pytest.mark.parametrize("name", CONFIGS)
@th.no_grad()
def test_cached_uncached_and_teacher_forced_log_probs_are_the_models_own(name: str) -> None:
    model = make_language_model(name).eval()
    policy = make_policy(model)
    reader = CachedReader(policy.read, policy.device, 16)
    for observations in growing_texts(7, 20):
        cached = policy._get_action_dist_from_latent(reader(observations)).distribution.logits.log_softmax(-1)
        th.testing.assert_close(cached, log_probs(policy, th.as_tensor(observations)), rtol=0, atol=1e-5)

        lengths = (observations != PAD).sum(1)
        text, last = th.tensor([(text, last) for text, length in enumerate(lengths) for last in range(length)]).T
        forced = policy.get_distribution(TokenSteps(observations, text, last)).distribution.logits
        th.testing.assert_close(forced[last == th.as_tensor(lengths - 1)[text]], cached, rtol=0, atol=1e-5)
        for row, length in zip(observations, lengths, strict=True):
            expected = model(input_ids=th.as_tensor(row[None, :length])).logits[0, :, : Digits.vocab_size].log_softmax(-1)
            th.testing.assert_close(forced[: len(expected)], expected, rtol=0, atol=2e-5)
            forced = forced[len(expected) :]


def test_the_model_is_a_folder_or_an_object_that_is_left_alone(folder: str) -> None:
    model = make_language_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    from_object, from_folder = make_policy(model), make_policy(folder)
    assert_same(from_object, from_folder)
    assert_same(make_policy(Path(folder)), from_folder)
    from_object.pretrain(["123"], n_epochs=5)
    assert_different(from_object, from_folder)
    make_policy(model, dtype="bfloat16", lora=LORA, gradient_checkpointing=True)
    assert all(th.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and model.dtype == th.float32
    assert not any("lora" in name for name in model.state_dict())


def test_bfloat16(folder: str) -> None:
    policy, exact = make_policy(folder, dtype="bfloat16"), make_policy(folder)
    assert {parameter.dtype for parameter in policy.parameters()} == {th.bfloat16}
    assert log_probs(policy).dtype == th.float32
    assert 0 < (log_probs(policy).exp() - log_probs(exact).exp()).abs().max() < 0.1


@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_is_trained_once(tied: bool) -> None:
    policy = make_policy(make_language_model(tie_word_embeddings=tied))
    model = policy.language_model
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    trained = [id(parameter) for group in policy.optimizer.param_groups for parameter in group["params"]]
    assert len(trained) == len({*trained})
    assert {*trained} == {id(parameter) for parameter in model.parameters()} == {id(each) for each in policy.parameters()}
    n_tied = 32 * ROWS if tied else 0
    assert sum(value.numel() for value in policy.state_dict().values()) == model.num_parameters() + n_tied

    policy.pretrain([("1+2=", "3"), ("2+2=", "4")], n_epochs=30, learning_rate=1e-2)
    assert policy.generate(["1+2=", "2+2="]) == ["3", "4"]
    other = make_policy("llama" if not tied else make_language_model(tie_word_embeddings=True))
    other.load_state_dict(policy.state_dict())
    assert_same(policy, other)


def test_lora_trains_the_adapters_only(folder: str) -> None:
    policy, original = make_policy(folder, lora=LORA), make_policy(folder)
    assert_same(policy, original)
    before = {name: value.clone() for name, value in policy.named_parameters()}
    trained = {id(parameter) for group in policy.optimizer.param_groups for parameter in group["params"]}
    assert trained == {id(value) for name, value in policy.named_parameters() if "lora" in name}
    policy.pretrain(["123"], n_epochs=20, learning_rate=1e-2)
    assert_different(policy, original)
    changed = {name for name, value in policy.named_parameters() if not th.equal(value, before[name])}
    assert changed == {name for name in before if "lora" in name}

    assert all("lora" in name for name in policy.state_dict()), "the frozen weights are in the folder"
    other = make_policy(folder, lora=LORA)
    other.load_state_dict(policy.state_dict())
    assert_same(policy, other)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(dict(list(policy.state_dict().items())[1:]))
    reader = CachedReader(policy.read, policy.device, 16)
    with th.no_grad():
        cached = policy._get_action_dist_from_latent(reader(OBSERVATIONS.numpy())).distribution.logits.log_softmax(-1)
    th.testing.assert_close(cached, log_probs(policy).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "lora"), [("llama", None), ("gpt2", LORA)])
def test_gradient_checkpointing_computes_twice_and_the_same(name: str, lora: Any, caplog: Any) -> None:
    if lora is not None:
        lora = {**lora, "init_lora_weights": False}
        if name == "gpt2":
            lora |= {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    transformers.utils.logging.enable_propagation()
    gradients, n_passes, state = [], [], {}
    for checkpointing in (False, True):
        policy = make_policy(make_language_model(name), lora=lora, gradient_checkpointing=checkpointing)
        state = state or policy.state_dict()
        policy.load_state_dict(state)
        policy.set_training_mode(True)
        n_passes.append(0)

        def count(*_: Any) -> None:
            n_passes[-1] += 1

        # Before and not after: the second time it goes only as far as it must
        next(module for module in policy.modules() if "MLP" in type(module).__name__).register_forward_pre_hook(count)
        log_probs(policy)[:, 0].sum().backward()
        gradients.append({key: value.grad for key, value in policy.named_parameters() if value.requires_grad})
    assert n_passes == [1, 2]
    assert all(value is not None and value.abs().sum() > 0 for value in gradients[0].values())
    for key, value in gradients[0].items():
        th.testing.assert_close(gradients[1][key], value)
    assert not caplog.records, "no warnings by transformers"
    assert policy.generate(["1"], max_new_tokens=3)


@pytest.mark.parametrize(("given", "lora"), [("folder", LORA), ("object", None)])
def test_grpo(given: str, lora: Any, folder: str, tmp_path: Path) -> None:
    initial = make_policy(folder)
    model = make_grpo(folder if given == "folder" else make_language_model(), lora=lora)
    assert_same(model.ref_policy, initial)
    model.learn(200)
    assert model._n_updates > 2
    assert_different(model.policy, initial)
    assert_same(model.ref_policy, initial)

    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=model.env, device="cpu")
    assert_same(loaded.policy, model.policy)
    assert_same(loaded.ref_policy, initial)
    if given == "folder":
        sizes = {entry.filename: entry.file_size for entry in zipfile.ZipFile(tmp_path / "model.zip").infolist()}
        assert sizes["data"] < 50_000
        assert (sizes["policy.pth"] < 20_000) == (lora is not None)
    loaded.learn(50, reset_num_timesteps=False)
    assert_different(loaded.policy, model.policy)
    model.reference.renew(model.policy)
    assert_same(model.ref_policy, model.policy)

    model.policy.save(tmp_path / "policy")
    assert_same(CausalLMPolicy.load(tmp_path / "policy", device="cpu"), model.policy)


@pytest.mark.parametrize("given", ["folder", "object"])
def test_the_reference_shares_the_frozen_weights(given: str, folder: str) -> None:
    model = make_grpo(folder if given == "folder" else make_language_model(), lora=LORA)
    policy, reference = model.policy, model.ref_policy
    initial = make_policy(folder)
    mine, theirs = dict(policy.named_parameters()), dict(reference.named_parameters())
    assert mine.keys() == theirs.keys()
    shared = {name for name in mine if mine[name].data_ptr() == theirs[name].data_ptr()}
    assert shared == {name for name in mine if "lora" not in name}
    both = {value.data_ptr(): value.numel() for value in [*mine.values(), *theirs.values()]}
    n_adapter = sum(value.numel() for name, value in mine.items() if "lora" in name)
    assert sum(both.values()) == initial.language_model.num_parameters() + 2 * n_adapter
    trained = {id(parameter) for group in policy.optimizer.param_groups for parameter in group["params"]}
    assert not trained & {id(value) for value in theirs.values()}

    kls = []
    model._log_update = lambda stats, *_: kls.append([epoch["kl_ref"].item() for epoch in stats])
    model.learn(200)
    # Adapters begin as nothing: at first the divergence from the model itself is none
    assert kls[0][0] < kls[-1][0]
    obs = th.as_tensor(growing_texts(6, 8)[-1])
    ours, model_itself = log_probs(policy, obs), log_probs(initial, obs)
    exact = model.reference.kl(policy.get_distribution(obs), (obs,), None, None, None)[1]
    th.testing.assert_close(exact, (ours.exp() * (ours - model_itself)).sum(-1), rtol=1e-4, atol=1e-6)
    assert exact.mean() > 1e-3


def test_errors(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(message: str, model: Any = folder, error: Any = ValueError, **kwargs: Any) -> None:
        with pytest.raises(error, match=message):
            make_policy(model, **kwargs)

    for name in ("n_layers", "width", "n_heads"):
        refuses(f"CausalLMPolicy has no {name}: the network is that of the model: remove it", **{name: 4})
    refuses("CausalLMPolicy has no net_arch: the network is that of the model: remove it", net_arch=[64])
    refuses("Unknown dtype='float16', must be one of float32, bfloat16", dtype="float16")
    refuses("needs policy_kwargs=.*got nothing", model=None)
    refuses("a transformers.PreTrainedModel .*got Linear", model=th.nn.Linear(2, 2))
    refuses("knows only 12: .*model.resize_token_embeddings", model=make_language_model(vocab_size=12))
    refuses("at most 8 tokens .*but the context is 12", model=make_language_model(max_position_embeddings=8))
    refuses("at most 32 tokens .*but the context is 40", context=40)
    window = {"sliding_window": 8, "num_key_value_heads": 2}
    refuses("last 8 tokens in some layers, but the context is 12", model=make_language_model("mistral", **window))
    make_policy(make_language_model("mistral", **{**window, "sliding_window": 12}))
    headless = make_language_model().model
    refuses("cannot use LlamaModel: it needs a model with a language modelling head", model=headless)
    refuses("forward.. takes input_ids, position_ids", model=make_language_model("bloom", n_head=4, n_layer=1))
    scaled = make_language_model("cohere", num_key_value_heads=2)
    refuses("logits for a text read as a whole are not those of the model", model=scaled)
    capped = make_language_model("gemma2", num_key_value_heads=2, head_dim=8, initializer_range=1.0)
    refuses("Gemma2ForCausalLM does not support", model=capped, dtype="bfloat16")
    hybrid = make_language_model("lfm2", num_key_value_heads=2, layer_types=["conv", "full_attention"])
    refuses(r"with a cache failed .*Use a model whose layers are nothing but attention to keys", model=hybrid)
    refuses("lora must be a dict", lora=3)
    refuses("context=5 is shorter", context=5)

    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    refuses(r"lora=...\) needs the package peft: pip install \"sb3-grpo\[llm\]\"", error=ImportError, lora=LORA)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    refuses(r"needs the package transformers: pip install \"sb3-grpo\[llm\]\"", error=ImportError)


@pytest.mark.parametrize("how", ["pissa", "pissa_niter_4", "olora"])
def test_initialisations_that_change_frozen_weights_are_named(how: str) -> None:
    with pytest.warns(UserWarning, match=f"init_lora_weights='{how}' changes the frozen weights of the LlamaForCausalLM"):
        make_policy("llama", lora={**LORA, "init_lora_weights": how})


@pytest.mark.filterwarnings("error:init_lora_weights")
def test_other_initialisations_leave_frozen_weights_alone() -> None:
    for how in (True, False, "gaussian", "orthogonal"):
        make_policy("llama", lora={**LORA, "init_lora_weights": how, "use_dora": how is True})


def test_adapters_of_tied_weights_warn() -> None:
    model = make_language_model(tie_word_embeddings=True)
    for target in ("lm_head", "embed_tokens"):
        with pytest.warns(UserWarning, match="tie_word_embeddings"):
            make_policy(model, lora={"r": 4, "target_modules": [target]})


def test_all_end_tokens_of_the_model_end_answers() -> None:
    def make(eos_token_id: Any, stop: Any = ()) -> Any:
        model = make_language_model(eos_token_id=eos_token_id)
        return CausalLMPolicy(TokenSpace(LENGTH, Digits(), stop), SPACES[1], lambda _: 1e-2, model=model)

    with pytest.raises(ValueError, match=r"\(Digits\) ends texts with token 12, but LlamaForCausalLM with 2 \(eos_token_id"):
        make(2)
    with pytest.raises(ValueError, match=r"with 2 or 3 .*set eos_token_id=12 in its .* or write .*stop=\['2', '3'\]"):
        make([2, 3])
    with pytest.raises(ValueError, match=r"also ends texts with token 2 \('2'\) .*write .*stop=\['=', '2'\]"):
        make([2, Digits.eos_id], ("=",))
    env = VerifierTextVecEnv(2, tokenizer=CharTokenizer("0123456789+="))
    with pytest.raises(ValueError, match=r"\(CharTokenizer\) .*VerifierTextVecEnv\(..., tokenizer='path/to/model'\)\.$"):
        GRPO("CausalLMPolicy", env, policy_kwargs={"model": make_language_model(vocab_size=100, eos_token_id=2)})
    # No text has token 15
    for eos_token_id, stop in ((None, ()), ([15, Digits.eos_id], ()), ([2, Digits.eos_id], ("=", "2")), (2, ("2",))):
        make(eos_token_id, stop)


@pytest.mark.parametrize("algorithm", [GRPO, DAPO])
def test_defaults_are_those_of_a_pretrained_model(algorithm: type[GRPO], folder: str) -> None:
    def make(policy_kwargs: dict[str, Any], **settings: Any) -> tuple[Any, ...]:
        env = make_group_env(SameDigitEnv, 4)
        model = algorithm("CausalLMPolicy", env, policy_kwargs=policy_kwargs, device="cpu", **settings)
        assert model.n_groups == 4
        return model.learning_rate, model.n_epochs, model.gamma, model.advantage

    assert make({"model": folder}) == (1e-5, 1, 1.0, "outcome")
    assert make({"model": folder, "lora": LORA}) == (2e-4, 1, 1.0, "outcome")
    own: dict[str, Any] = {"learning_rate": 1e-3, "n_epochs": 10, "gamma": 0.99, "advantage": "return_to_go"}
    assert make({"model": folder}, **own) == tuple(own.values())


def test_a_saved_model_finds_its_folder_from_another_one(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folder).parent)
    model = make_grpo(Path(folder).name, lora=LORA).learn(50)
    model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert_same(GRPO.load(tmp_path / "model", device="cpu").policy, model.policy)


def forward(model: Any) -> th.Tensor:
    with th.no_grad():
        return model.eval()(input_ids=th.arange(8)[None]).logits


def test_what_is_saved_for_transformers_has_the_logits_of_the_policy(folder: str, tmp_path: Path) -> None:
    load, initial = transformers.AutoModelForCausalLM.from_pretrained, forward(make_language_model())
    with_adapters: Any = make_grpo(folder, lora=LORA).learn(100).policy
    expected = forward(with_adapters.language_model)
    assert (expected - initial).abs().max() > 1e-2
    with_adapters.language_model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*"))
    th.testing.assert_close(forward(peft.PeftModel.from_pretrained(load(folder), tmp_path / "adapter")), expected)
    with pytest.raises(ValueError, match=r"adapter' is the folder of an adapter.*peft.AutoPeft.*merge_and_unload"):
        make_policy(tmp_path / "adapter")
    merged = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").merge_and_unload()
    going_on = make_policy(merged, lora=LORA)
    th.testing.assert_close(forward(going_on.language_model), expected, rtol=0, atol=1e-4)
    with_adapters.language_model.merge_and_unload().save_pretrained(tmp_path / "merged")
    th.testing.assert_close(forward(load(tmp_path / "merged")), expected, rtol=0, atol=1e-4)

    whole: Any = make_grpo(folder).learn(100).policy
    assert (forward(whole.language_model) - initial).abs().max() > 1e-2
    whole.language_model.save_pretrained(tmp_path / "whole")
    th.testing.assert_close(forward(load(tmp_path / "whole")), forward(whole.language_model))


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_resumed_training_in_several_turns_continues_exactly(lora: Any, tmp_path: Path) -> None:
    make_language_model(eos_token_id=14).save_pretrained(tmp_path / "llama")

    def make_env() -> VerifierTextVecEnv:
        return VerifierTextVecEnv(8, seed=0, task="guess_number", max_answer_tokens=8)

    policy_kwargs = {"model": tmp_path / "llama", "lora": lora}
    settings: dict[str, Any] = {"group_size": 4, "n_groups": 2, "kl_coef": 0.1, "device": "cpu", "seed": 0}
    model: Any = DAPO(CausalLMPolicy, make_env(), policy_kwargs=policy_kwargs, learning_rate=1e-3, **settings)
    # Guesses that are right by chance
    model.policy.pretrain([("0-9?", digit) for digit in "0123456789"], n_epochs=20, learning_rate=1e-2)
    model.learn(300, callback=TrainingCheckpoint(tmp_path / "checkpoints", save_freq=1, keep=10))
    assert model._n_updates > 2
    first, second, *_ = checkpoints_in(tmp_path / "checkpoints")
    for path in (first, second):
        assert digest(DAPO.resume(path, make_env(), device="cpu").learn()) == digest(model)


class Forgetful(transformers.LlamaModel):
    """A model that knows the present tokens only."""

    @wraps(transformers.LlamaModel.forward)
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return super().forward(input_ids, use_cache=False)


def test_a_model_that_does_not_take_the_cache_as_it_is_is_refused() -> None:
    model = make_language_model()
    model.model = Forgetful(model.config)
    with pytest.raises(ValueError, match=r"read token by token are not those of the model itself \(on average"):
        make_policy(model)
