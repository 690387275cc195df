from benchmarks.common import rows
from benchmarks.runs import run_missing


def test_only_missing_runs_are_run_and_a_failing_one_stops_no_other(tmp_path, capsys):
    path = tmp_path / "new folder" / "rows.jsonl"
    jobs = [{"task": "cart", "seed": seed} for seed in range(3)]
    asked = []

    def run(job):
        asked.append(job["seed"])
        if job["seed"] == 1 and len(asked) <= 3:
            raise RuntimeError("a long story\nout of memory")
        return {"curve": [1.0, 2.0]}

    run_missing(path, jobs, run, n_processes=1)
    assert [row["seed"] for row in rows(path)] == [0, 2]
    assert "out of memory" in capsys.readouterr().out
    assert {"task", "curve", "commit", "machine", "versions"} <= rows(path)[0].keys()

    run_missing(path, jobs, run, n_processes=1)
    assert asked == [0, 1, 2, 1]
    assert [row["seed"] for row in rows(path)] == [0, 2, 1]
