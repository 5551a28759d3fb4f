"""Check of the environment: what a process would refuse, what is misspelt, and what has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from byteps_py import known_names
from byteps_py.doctor.findings import Finding, note, ok, problem, warning
from byteps_py.doctor.situation import Situation
from byteps_py.env_report import describes_a_job, inspect_environment
from byteps_py.errors import SettingsError
from byteps_py.role import Role
from byteps_py.settings import runs_alone
from byteps_py.torchrun import worker_variables

__all__ = ["check_variables"]

_CORRECT = "set it right where the job is started; `bps env` shows every setting with its value and its origin"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def check_variables(situation: Situation) -> Iterator[Finding]:
    """All that is wrong with the variables of the role, at once."""
    environ = situation.environment
    report = inspect_environment(environ, situation.role)
    texts = dict.fromkeys(each.problem for _, findings in report.rows for each in findings if each.problem)
    texts |= dict.fromkeys(report.problems)
    problems = [problem(text, _CORRECT) for text in texts] + list(_contradictions(situation))
    yield from problems
    yield from _without_effect(situation)
    if not describes_a_job(environ):
        others = known_names.foreign_launch(environ)
        if others is not None:
            yield warning(others, "start the script by `bpslaunch`, or by torchrun with DMLC_PS_ROOT_URI")
        elif not problems:
            yield ok("no distributed job is described here: one process is a job of its own, `bpslaunch` starts more")
    elif situation.needless and not problems:
        if situation.role in (None, Role.WORKER):
            yield ok("DMLC_NUM_WORKER=1: this worker is a job of its own, without scheduler and servers")
        else:
            yield warning(
                f"this {situation.role} would end at once, since {situation.needless}", "start it for larger jobs only"
            )
    elif not problems:
        yield ok(f"the variables of {'all roles' if situation.role is None else f'a {situation.role}'} are good")


def _contradictions(situation: Situation) -> Iterator[Finding]:
    """What would be refused before the settings are read."""
    for look in (worker_variables, runs_alone):
        try:
            look(situation.environment)
        except SettingsError as error:
            if not describes_a_job(situation.environment):  # with a role missing or bad the report has told
                yield problem(str(error), _CORRECT)
                return


def _without_effect(situation: Situation) -> Iterator[Finding]:
    environ = situation.environment
    told = known_names.report(environ)
    for line in told:
        name = line.partition(":")[0]
        if name in environ and name not in known_names.KNOWN:
            yield warning(line, "correct the name, or unset it")
        else:
            yield note(line)
    if situation.role is Role.WORKER:
        for line in known_names.at_start(Role.WORKER, environ):
            if line not in told:
                yield warning(line, "start the worker by `bpslaunch`")
    if situation.job is not None:
        if situation.job.node_host is not None and situation.job.interface is not None:
            yield note("DMLC_INTERFACE has no effect: DMLC_NODE_HOST goes before it")
        proxies = [name for name in _PROXIES if environ.get(name) or environ.get(name.upper())]
        if proxies:
            yield note(f"{', '.join(proxies)}: not used, since the processes of a job connect to each other directly")
