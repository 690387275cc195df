"""Groups, the KL penalty and trust regions: what the widgets say, and the numbers of the chapters."""

from typing import Any

SAYS = {
    ("group", "3.8, 5.2, 6.1"): "\u22121.06, 0.14, 0.92",
    ("group", "Sydney 2, Canberra 10, Melbourne 3"): "\u22120.84, 1.40, \u22120.56",
    ("group", "10, 10, 10"): "The group is dead",
    ("group", "verdicts of four groups"): "2 of 4 groups are live; dynamic sampling keeps 2 and draws 2 anew",
    ("kl", "the policy has nearly lost C"): "it has that of KL(reference \u2016 policy)",
    ("kl", "k1 as it stands"): "its gradient is zero",
    ("kl", "k2 as it stands"): "as it stands, it has that gradient too",
    ("kl", "k2, an earlier policy acted"): "the gradient of neither divergence",
    ("kl", "policy = reference"): "KL(policy \u2016 reference) = 0.000",
    ("reset", "\u03b2 = 0.5"): "right with probability 0.45",
    ("reset", "never reset"): "There it stays",
    ("trust-region", "None of them"): "After 20 updates: vanilla 9.96, scaled 17.91, natural 17.91, clipped 17.46",
    # As the slide and its notes say
    ("trust-region", "10 updates, η = 0.25: as short, at first"): (
        "After 10 updates: vanilla 9.46, scaled 10.88, natural 17.42, clipped 9.30"
    ),
    ("trust-region", "10 updates, η = 1"): "vanilla 9.91, scaled 10.88, natural 17.42, clipped 10.73",
    ("trust-region", "one update, η = 1"): "After 1 update:",
}
# Worked out by hand
ANSWERS = {
    "grpo-one-of-four": "1.5",
    "grpo-k3": "0.307",
    "dapo-overlong": "-0.75",
    "dapo-dead": "2.91",
    "prorl-references": "4",
    "memory-without-critic": "126",
    "sign-of-kl": "0.013",
    "natural-length": "0.1265",
    "gae-backwards": "-0.75",
    "best-baseline": "6",
}


def test_examples_say_what_the_lecture_notes_say(opened: Any) -> None:
    for (name, example), expected in SAYS.items():
        section = opened.locator(f"#{name}")
        section.get_by_role("button", name=example, exact=True).click()
        assert expected in section.locator(".says").inner_text(), (name, example)


def test_typed_rewards(opened: Any) -> None:
    section = opened.locator("#group")
    rewards = section.locator("input[type=text]")
    rewards.fill("0, 4; 7 7")
    assert "1 of 2 groups are live" in section.locator(".says").inner_text()
    assert section.locator("rect.fill-grey").count() == 2
    for typed, complaint in {
        "1, x": "Numbers, please",
        "1, 2; 3": "the same number of members",
        "1": "at least two members",
        "": "at least two members",
        "1 " * 60: "Up to 48",
    }.items():
        rewards.fill(typed)
        assert complaint in section.locator(".says").inner_text(), typed


def test_dropped_groups_do_not_count_in_the_batch(opened: Any) -> None:
    section = opened.locator("#group")
    section.locator("input[type=text]").fill("0, 2; 5, 5")
    section.locator("select").nth(1).select_option("batch")
    with_dead = section.locator(".says").inner_text()
    section.get_by_label("Dynamic sampling").check()
    # Two deviations of 1: the population's deviation is 1 without the dead group, 0.71 with it
    assert "\u22121.41, 1.41" in with_dead
    assert "\u22121.00, 1.00" in section.locator(".says").inner_text()


def test_link_to_four_groups_shows_them(opened: Any) -> None:
    opened.locator("#dapo a[href^='#group?']").click()
    opened.locator("#group .says", has_text="draws 2 anew").wait_for()


def test_exercises_accept_what_is_worked_out_by_hand(opened: Any) -> None:
    for name, answer in ANSWERS.items():
        exercise = opened.locator(f"#exercise-{name}")
        exercise.locator("input").fill(answer)
        exercise.locator("button").click()
        assert exercise.locator("output").inner_text() == "Right.", name


def test_chapters_have_the_numbers_of_the_lecture_notes(opened: Any) -> None:
    grpo, dapo, prorl, mistakes = (opened.locator(f"#{name}").inner_text() for name in ("grpo", "dapo", "prorl", "mistakes"))
    for number in ("\u22120.86", "1.43", "\u22120.57", "\u22120.84", "1.40", "\u22120.56"):
        assert number in grpo, number
    for number in ("\u22121.06", "0.14", "0.92"):
        assert number in mistakes, number
    for number in ("1.2", "1.28", "1.80", "1.69", "1.405", "43%", "0.50"):
        assert number in dapo, number
    assert "0.4509" in prorl
