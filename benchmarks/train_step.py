"""How long a training step takes: byteps_py's DistributedOptimizer in turn with torch's DDP over gloo.

    python -m benchmarks.train_step --model resnet18 --peer ddp-gloo --json FILE

The same model, data (synthetic, `--batch` samples per worker and step), optimizer (SGD with momentum) and number of
workers on both sides, one torch thread per worker; ours has `--servers` servers beside them.  Models: `resnet18` on
images of 64 x 64, `mlp` of 25 M parameters, and a small `transformer`.

*Step time*, seconds = time of a window / its steps, of the slowest worker: data are at hand, so a step is zero_grad,
forward, backward, exchange and update.  The sides go in turn, A B A B ..., `--pairs` times, each with a warm-up that is
not counted.  `ratio_median` is the median of our time over the peer's, pair by pair: less is better.  `alone`, with
`--alone`, is the time of a step of as many workers at the same time that exchange nothing: no exchange can be faster.

*Checks*: after the first three steps of each turn, which are not timed, all workers of a side must have the same
parameters, bit for bit, and both sides the same within rounding; after the window all workers of a side once more.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import arguments, environment, figures, systems, turns
from benchmarks.side import Program, Side, SideError, perform
from benchmarks.turns import say

FIRST_STEPS = 3
LEAST_PIXELS = 32
"""resnet18 halves an image five times."""
RELATIVE, ABSOLUTE = 1e-3, 1e-5
"""How close the parameters of two sides must be: rounding grows in each step."""
Parameters = npt.NDArray[np.float32]


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON file; returns the exit status."""
    options = parse(words)

    def body() -> None:
        found = measure(options)
        print(as_text(found))
        figures.write(options.json, found)

    return perform("train_step", body)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All pairs; returns what goes into the JSON file.

    Raises:
        SideError: a process has failed, or parameters differ that must not.
    """
    about = environment.describe()
    settings = figures.settings(options, systems.ours_environment(options.transport))
    ours, peer, alone = [], [], []
    for pair in range(options.pairs):
        seconds, parameters = _turn("ours", options)
        ours.append(seconds)
        words = [f"ours {1e3 * seconds:.1f} ms"]
        if options.peer != "none":
            seconds, others = _turn("ddp", options)
            peer.append(seconds)
            words.append(f"DDP {1e3 * seconds:.1f} ms")
            _compare(parameters, others)
        if options.alone:
            alone.append(_turn("alone", options)[0])
            words.append(f"without exchange {1e3 * alone[-1]:.1f} ms")
        say(f"pair {pair + 1} of {options.pairs}: {', '.join(words)}")
    return {
        "ours": ours,
        "peer": peer,
        "alone": alone,
        "ratio_median": turns.median_ratio(ours, peer) if peer else None,
        "parameters": int(parameters.size),
        "verified": True,  # a difference is an error
        "settings": settings,
        "environment": about,
    }


def _turn(name: str, options: argparse.Namespace) -> tuple[float, Parameters]:
    """Seconds of a step, and the parameters after the first ones."""
    limit = 120.0 + 20 * (options.seconds + options.warmup)
    with _side(name, options) as side:
        side.phase("steps", limit=limit, steps=FIRST_STEPS)
        _agree(side, check=name != "alone")
        parameters: Parameters = np.load(side.path("parameters.npy"))
        steps, spent = 1, 0.0
        while True:
            seconds = _slowest(side, steps, limit)
            spent += seconds
            if spent >= options.warmup:
                break
            steps = max(1, math.ceil(0.6 * options.warmup * steps / seconds))
        steps = max(1, math.ceil(options.seconds * steps / seconds))
        seconds = _slowest(side, steps, limit)
        _agree(side, check=name != "alone")
    return seconds / steps, parameters


def _slowest(side: Side, steps: int, limit: float) -> float:
    return max(float(each["seconds"]) for each in side.phase("steps", limit=limit, steps=steps))


def _agree(side: Side, *, check: bool) -> None:
    found = [each["sha256"] for each in side.phase("parameters")]
    if check and len(set(found)) > 1:
        raise SideError(f"{side.name}: the workers' parameters differ: {', '.join(each[:12] for each in found)}")


def _compare(ours: Parameters, others: Parameters) -> None:
    if not (np.isfinite(ours).all() and np.allclose(ours, others, rtol=RELATIVE, atol=ABSOLUTE)):
        worst = float(np.abs(ours - others).max())
        raise SideError(f"after {FIRST_STEPS} steps the parameters of the sides differ by up to {worst:.3g}")


def _side(name: str, options: argparse.Namespace) -> Side:
    shared = {each: getattr(options, each) for each in ("model", "batch", "pixels", "seed")}
    shared["arena"] = options.arena == "yes"
    work = {**shared, "side": name}
    module = "benchmarks.train_worker"
    if name == "ours":
        environ = systems.ours_environment(options.transport)
        programs = [systems.bpslaunch(options.workers, options.servers, module, environ)]
    else:
        command = (sys.executable, "-m", module, "{folder}")
        programs = [Program((*command, str(rank)), systems.gloo_environment()) for rank in range(options.workers)]
    return Side({"ours": "byteps_py", "ddp": "DDP"}.get(name, name), programs, options.workers, work)


def as_text(found: dict[str, Any]) -> str:
    """The table."""
    settings = found["settings"]
    lines = [
        f"{settings['model']}, {found['parameters'] / 1e6:.1f} M parameters, batch {settings['batch']}, "
        f"{settings['workers']} workers, {settings['servers']} servers, transport {settings['transport']}, "
        f"arena {settings['arena']}; medians of {settings['pairs']} turns",
    ]
    for title, key in (("byteps_py", "ours"), (settings["peer"], "peer"), ("without exchange", "alone")):
        if found[key]:
            lines.append(f"{title:20}{1e3 * statistics.median(found[key]):9.1f} ms a step")
    if found["peer"]:
        lines.append(f"our time over the peer's, median of the pairs: {figures.ratio(found['ratio_median'])}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("train_step", "Measure a training step, in turn with torch DDP over gloo.")
    add = found.add_argument
    add("--model", choices=("resnet18", "mlp", "transformer"), default="resnet18", help="default: %(default)s")
    add("--peer", choices=("none", "ddp-gloo"), default="ddp-gloo", help="default: %(default)s")
    add("--workers", type=arguments.processes, default=2, metavar="N", help="default: %(default)s")
    add("--servers", type=arguments.processes, default=1, metavar="N", help="default: %(default)s")
    add("--batch", type=arguments.natural, default=16, metavar="N", help="samples per worker (default: %(default)s)")
    add(
        "--pixels",
        type=arguments.whole(LEAST_PIXELS),
        default=64,
        metavar="N",
        help=f"height and width of resnet18's images, at least {LEAST_PIXELS} (default: %(default)s)",
    )
    arguments.add_transport(found)
    add("--arena", choices=("yes", "no"), default="no", help="our gradients live in the arena (default: %(default)s)")
    add("--seconds", type=arguments.seconds, default=5.0, help="of each window (default: %(default)s)")
    add("--warmup", type=arguments.warmup_seconds, default=1.0, help="seconds before it (default: %(default)s)")
    add("--pairs", type=arguments.natural, default=5, metavar="N", help="turns of each side (default: %(default)s)")
    add("--seed", type=arguments.seed, default=1, metavar="N", help="of weights and data (default: %(default)s)")
    add("--alone", action="store_true", help="measure steps without any exchange as well (default: no)")
    add("--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)")
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in force, which have been found to fit together.

    Raises:
        SystemExit: they do not, or torch is not installed.
    """
    asked = parser()
    options = asked.parse_args(words)
    options.transport = arguments.transport(asked, options.transport)
    if options.peer != "none" and options.workers < 2:
        asked.error(f"--peer {options.peer} needs at least 2 workers: DDP exchanges nothing for one")
    if options.model == "resnet18" and options.batch == 1 and options.pixels <= LEAST_PIXELS:
        asked.error(
            f"resnet18 normalizes over a batch, and one image of {LEAST_PIXELS} x {LEAST_PIXELS} has a single value "
            f"for that in the end; use --batch 2, or --pixels {LEAST_PIXELS + 1}"
        )
    sample = {"resnet18": 12 * options.pixels**2, "mlp": 4096, "transformer": 512}[options.model]
    arguments.check_memory(asked, 4 * options.workers * options.batch * sample, "the 4 batches of each worker")
    arguments.check_torch(asked, "train_step")
    return options


if __name__ == "__main__":
    sys.exit(main())
