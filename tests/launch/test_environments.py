"""The environments of tasks, with real supervisors, uv and packages that are written on the spot."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from det_keras.launch.environments.cache import KEPT_S, EnvironmentCache, default_cache_folder
from det_keras.launch.environments.interpreter import Interpreter
from det_keras.launch.environments.request import BuildError
from det_keras.launch.environments.uv import explain, find_uv, is_transient

from .tasks import BACKEND, PROJECT, Task, make_interpreter, write_wheel
from .waiting import eventually, is_dead

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_uv(os.environ["PATH"]) is None, reason="needs uv: the extra `environments`"),
]
SHOW = "import {0}; print({0}.VERSION, {0}.__file__)"
ARCHIVED_PIP = "pip install"


class World:
    """A machine with an interpreter that has `shade` 1.0 and `paint` 1.0, and a directory of wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "wheels"
        self.shade = write_wheel(root / "installed", "shade", "1.0")
        self.python = make_interpreter(
            root / "master", self.shade, write_wheel(root / "installed", "paint", "1.0", ("shade",))
        )
        self.environments = root / "environments"
        self.marks = root / "marks"
        self.marks.mkdir()
        self._count = 0
        self.tasks: list[Task] = []

    def start(self, code: str | list[str], **options) -> Task:
        self._count += 1
        argv = ["python3", "-c", code] if isinstance(code, str) else code
        options.setdefault("PATH", f"{self.python.parent}:/usr/bin:/bin")
        task = Task(
            self.root / f"task-{self._count}",
            argv,
            UV_FIND_LINKS=str(self.wheels),
            UV_CACHE_DIR=str(self.root / "uv"),
            BUILD_MARKS=str(self.marks),
            **options,
        )
        self.tasks.append(task)
        return task

    def run(self, code: str | list[str], **options) -> Task:
        task = self.start(code, **options)
        assert task.finish().get("exit_code") == 0, (task.notes(), task.output())
        return task

    def start_slow(self) -> Task:
        """Start a task with a package whose build waits."""
        files = {"slow/pyproject.toml": PROJECT, "slow/backend.py": BACKEND}
        return self.start("import slow; print(slow.VALUE)", request={"pip": ["./slow"]}, files=files)

    def builds(self) -> list[int]:
        """Return the processes that built that package."""
        return [int(mark.name) for mark in self.marks.iterdir() if mark.name != "go"]

    def install_pip(self, unpacked: Path) -> None:
        """Let the interpreter have a pip of its own, as `unpacked` has it; without it, a task has Python's archive."""
        library = next((self.root / "master").glob("lib/*/site-packages"))
        for one in unpacked.iterdir():
            (library / one.name).symlink_to(one)

    def version(self, name: str) -> str:
        """Return the version of a package that the interpreter itself has."""
        code = f"import importlib.metadata as m; print(m.version('{name}'))"
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture
def world(tmp_path):
    (tmp_path / "wheels").mkdir()
    world = World(tmp_path)
    yield world
    for task in world.tasks:
        task.process.kill()


@pytest.fixture(scope="module")
def unpacked_pip(tmp_path_factory):
    """Return a directory with the pip that comes with Python, unpacked: compiled when it is first used.

    Each use of the archive compiles it again, which takes twice as long as the rest of what pip does.
    """
    folder = tmp_path_factory.mktemp("pip")
    bare = make_interpreter(tmp_path_factory.mktemp("bare") / "environment")
    if wheel := Interpreter.ask(str(bare), dict(os.environ)).pip_wheel:
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_task_imports_what_it_asks_for_beside_what_the_interpreter_has(world):
    write_wheel(world.wheels, "brush", "2.0", ("paint>=1", "shade"))
    task = world.run(f"{SHOW.format('brush')}; {SHOW.format('paint')}", request={"pip": ["brush"]})
    brush, paint = task.output()
    assert brush.startswith(f"2.0 {world.environments}")
    # Neither `paint` nor `shade` is in any index: what is installed is neither fetched nor installed again.
    assert paint.startswith(f"1.0 {world.root / 'master'}")
    assert "brush 2.0" in task.notes()


def test_another_version_than_the_interpreters_is_installed_beside_it(world):
    write_wheel(world.wheels, "shade", "2.0")
    task = world.run(f"{SHOW.format('shade')}; {SHOW.format('paint')}", request={"pip": ["shade>=2"]})
    shade, paint = task.output()
    assert shade.startswith(f"2.0 {world.environments}")
    assert paint.startswith(f"1.0 {world.root / 'master'}")
    assert "shade 2.0 in place of 1.0" in task.notes()
    assert world.version("shade") == "1.0"


def test_what_the_interpreter_has_needs_no_package(world):
    task = world.run(SHOW.format("shade"), request={"pip": ["shade"]})
    assert task.output()[0].startswith(f"1.0 {world.root / 'master'}")
    assert "has everything already" in task.notes()


def test_metadata_shows_each_package_once_and_as_it_is(world):
    write_wheel(world.wheels, "shade", "2.0")
    code = (
        "import importlib.metadata as m; print(m.version('shade'), m.version('paint')); "
        "print([d.name for d in m.distributions()].count('paint'))"
    )
    assert world.run(code, request={"pip": ["shade>=2"]}).output() == ["2.0 1.0", "1"]


def test_programs_and_variables_are_those_of_the_environment(world):
    write_wheel(world.wheels, "brush", "2.0", script=True)
    script = (
        "brush; python -c 'import sys; print(sys.prefix)'; echo $VIRTUAL_ENV; command -v python3 pip pip3"
    )
    task = world.run(["sh", "-c", script], request={"pip": ["brush"]})
    version, prefix, variable, *programs = task.output()
    assert version == "2.0"
    assert prefix == variable == str(task.work / ".det_keras" / "environment")
    assert {Path(program).parent for program in programs} == {Path(prefix) / "bin"}


def test_interpreter_of_the_config_runs_the_task(world):
    other = make_interpreter(world.root / "other", write_wheel(world.root / "installed", "shade", "7.0"))
    task = world.run(SHOW.format("shade"), request={"python": str(other)})
    assert task.output()[0].startswith(f"7.0 {world.root / 'other'}")


def test_interpreter_without_keras_gets_a_warning_and_det_keras(world):
    # The interpreter has none of the packages; det_keras comes from the supervisor.
    task = world.run("import det_keras; print(det_keras.__version__)", request={"python": str(world.python)})
    assert task.output() == [__import__("det_keras").__version__]
    assert "has no keras, tensorflow" in task.notes()
    assert "environment.pip" in task.notes()


def other_version() -> str:
    """Return an interpreter of another version than the one that runs the tests."""
    variables = dict(os.environ)
    named = [shutil.which(f"python3.{minor}") for minor in (10, 11, 12, 13)]
    # Beside the one that runs the tests, as uv and pyenv install them.
    beside = sorted(Path(sys.base_prefix).parent.glob("*/bin/python3"))
    for path in [*filter(None, named), *map(str, beside)]:
        with contextlib.suppress(BuildError):
            found = Interpreter.ask(path, variables)
            if (3, 10) <= found.version[:2] != sys.version_info[:2]:
                # Not `path`: a shim of pyenv starts another program, depending on the variables.
                return found.path
    pytest.skip("needs a Python of another version")


def test_interpreter_of_another_version_has_packages_of_its_own(world):
    write_wheel(world.wheels, "brush", "1.0")
    code = "import brush, det_keras, sys; print(brush.__file__, *sys.version_info[:2])"
    hook = f"pip install -q --no-index --find-links {world.wheels} 'brush==0.5'\n"
    request = {"python": other_version(), "pip": ["brush"]}
    (line,) = world.run(code, request=request).output()
    path, major, minor = line.split()
    assert path.startswith(str(world.environments))
    assert f"/python{major}.{minor}/" in path
    assert int(minor) != sys.version_info.minor
    write_wheel(world.wheels, "brush", "0.5")
    line = world.run(code, request=request, files={"startup-hook.sh": hook}).output()[-1]
    assert ".det_keras/environment" in line


def test_entrypoint_with_a_path_is_left_alone(world):
    write_wheel(world.wheels, "shade", "2.0")
    argv = [str(world.python), "-c", SHOW.format("shade")]
    assert world.run(argv, request={"pip": ["shade>=2"]}).output()[0].startswith("1.0")


REQUIREMENTS = {
    "requirements.txt": "# needed\n-r more/base.txt\n-c limits.txt\n--find-links links\nshade>=2\n",
    "more/base.txt": "brush  # any\n",
    "limits.txt": "brush<3\n",
}


def test_requirements_file_with_options_is_followed(world):
    write_wheel(world.wheels, "brush", "2.0")
    write_wheel(world.wheels, "brush", "3.0")
    write_wheel(world.wheels, "shade", "2.0")
    files = {**REQUIREMENTS, "links/.keep": ""}
    code = f"{SHOW.format('brush')}; {SHOW.format('shade')}"
    first = world.run(code, request={"requirements": "requirements.txt"}, files=files)
    assert [line.split()[0] for line in first.output()] == ["2.0", "2.0"]

    again = world.run(code, request={"requirements": "requirements.txt"}, files=files)
    assert "Building" not in again.notes()

    files["limits.txt"] = "brush>=3\n"
    changed = world.run(code, request={"requirements": "requirements.txt"}, files=files)
    assert changed.output()[0].startswith("3.0")


def test_requirements_file_and_list_are_both_installed(world):
    for name in ("brush", "easel"):
        write_wheel(world.wheels, name, "1.0")
    request = {"pip": ["brush"], "requirements": "r.txt"}
    task = world.run("import brush, easel", request=request, files={"r.txt": "easel\n"})
    assert "Building an environment" in task.notes()


@pytest.mark.parametrize("line", ["./slow", "-e ./slow", "slow @ file://{0}/slow"])
def test_local_package_is_copied_and_built_again_when_it_changes(world, line):
    (world.marks / "go").touch()
    files = {"slow/pyproject.toml": PROJECT, "slow/backend.py": BACKEND, "r.txt": line}
    if "{0}" in line:
        shared = world.root / "shared"
        (shared / "slow").mkdir(parents=True)
        for name, text in (("pyproject.toml", PROJECT), ("backend.py", BACKEND)):
            (shared / "slow" / name).write_text(text)
        files = {"r.txt": line.format(shared)}
    code = "import slow; print(slow.__file__)"
    for _ in range(2):
        task = world.run(code, request={"requirements": "r.txt"}, files=files)
        # The directory of the task that built it is gone.
        assert task.output()[0].startswith(str(world.environments))
    assert len(world.builds()) == 1
    if "{0}" not in line:
        files["slow/backend.py"] += "\n# changed\n"
        assert "Building" in world.run(code, request={"requirements": "r.txt"}, files=files).notes()


def test_environment_is_built_again_when_the_interpreter_changes(world):
    write_wheel(world.wheels, "brush", "1.0")
    world.run("import brush", request={"pip": ["brush"]})
    assert "Building" not in world.run("import brush", request={"pip": ["brush"]}).notes()
    folder = next((world.root / "master").glob("lib/*/site-packages"))
    (folder / "shade-1.0.dist-info").rename(folder / "shade-1.1.dist-info")
    assert "Building" in world.run("import brush", request={"pip": ["brush"]}).notes()


def test_two_tasks_that_start_together_build_once(world):
    first = world.start_slow()
    eventually(world.builds)
    second = world.start_slow()
    eventually(lambda: "waiting for it" in second.notes())
    (world.marks / "go").touch()
    assert [task.finish()["exit_code"] for task in (first, second)] == [0, 0]
    assert first.output() == second.output() == ["slow"]
    assert len(world.builds()) == 1
    assert "Building" not in second.notes()


@pytest.mark.kill
def test_killed_build_leaves_nothing_that_counts(world):
    killed = world.start_slow()
    (builder,) = eventually(world.builds)
    killed.process.kill()
    eventually(lambda: is_dead(builder))
    (environment,) = [path for path in world.environments.iterdir() if path.is_dir()]
    remains = environment / "remains"
    remains.touch()
    (world.marks / "go").touch()

    task = world.start_slow()
    assert task.finish()["exit_code"] == 0, task.notes()
    assert task.output() == ["slow"]
    assert "Building" in task.notes()
    assert not remains.exists()


@pytest.mark.kill
def test_build_of_a_killed_supervisor_is_locked_until_its_processes_are_dead(world):
    killed = world.start_slow()
    (builder,) = eventually(world.builds)
    os.kill(builder, signal.SIGSTOP)
    try:
        lock = next(world.environments.glob("*.build"))
        holders = [
            link for link in Path(f"/proc/{builder}/fd").iterdir() if os.path.realpath(link) == str(lock)
        ]
        assert holders, "The processes of a build hold its lock."
    finally:
        killed.process.kill()
    eventually(lambda: is_dead(builder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 137), (signal.SIGTERM, 143)])
def test_task_can_be_killed_while_its_environment_is_built(world, number, code):
    task = world.start_slow()
    (builder,) = eventually(world.builds)
    task.process.send_signal(number)
    assert task.finish()["exit_code"] == code
    eventually(lambda: is_dead(builder))
    assert not [path for path in world.environments.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    "command",
    [ARCHIVED_PIP, "pip3 install", "python -m pip install", f"{find_uv(os.environ['PATH'])} pip install"],
    ids=["pip", "pip3", "python -m pip", "uv pip"],
)
def test_hook_changes_only_its_own_task(world, command, unpacked_pip):
    if command != ARCHIVED_PIP:
        world.install_pip(unpacked_pip)
    write_wheel(world.wheels, "shade", "0.5")
    mine = importlib.metadata.version("pydantic")
    hook = f"{command} -q --no-index --find-links {world.wheels} 'shade<1'\n"
    task = world.run(SHOW.format("shade"), files={"startup-hook.sh": hook})
    assert task.output()[-1].startswith(f"0.5 {task.work}")
    assert world.version("shade") == "1.0"
    assert importlib.metadata.version("pydantic") == mine
    later = world.run(SHOW.format("shade"), files={"startup-hook.sh": "true\n"})
    assert later.output()[0].startswith("1.0")
    assert not task.work.exists()


def test_hook_cannot_install_for_the_user(world, unpacked_pip):
    world.install_pip(unpacked_pip)
    write_wheel(world.wheels, "shade", "0.5")
    hook = f"pip install --user --no-index --find-links {world.wheels} 'shade<1'\n"
    task = world.start("pass", files={"startup-hook.sh": hook})
    assert task.finish()["exit_code"] == 1
    assert "Can not perform a '--user' install" in task.notes()
    assert not list(world.root.glob(".local/**/shade*"))


def test_hook_works_on_top_of_the_cached_environment_and_does_not_change_it(world, unpacked_pip):
    world.install_pip(unpacked_pip)
    for version in ("0.5", "2.0"):
        write_wheel(world.wheels, "shade", version)
    request = {"pip": ["shade>=2"]}
    hook = f"pip install -q --no-index --find-links {world.wheels} 'shade<1'\n"
    changed = world.run(SHOW.format("shade"), request=request, files={"startup-hook.sh": hook})
    assert changed.output()[-1].startswith(f"0.5 {changed.work}")
    later = world.run(SHOW.format("shade"), request=request)
    assert later.output()[0].startswith(f"2.0 {world.environments}")
    assert "Building" not in later.notes()


def test_script_that_installs_does_not_change_the_cache_either(world, unpacked_pip):
    world.install_pip(unpacked_pip)
    for version in ("0.5", "2.0"):
        write_wheel(world.wheels, "shade", version)
    install = f"pip install -q --no-index --find-links {world.wheels} 'shade<1'"
    world.run(["sh", "-c", install], request={"pip": ["shade>=2"]})
    assert world.run(SHOW.format("shade"), request={"pip": ["shade>=2"]}).output()[0].startswith("2.0")


def test_task_without_hook_and_settings_keeps_its_python(world):
    task = world.run(
        "import sys; print(sys.prefix)", request={"python": None, "pip": [], "requirements": None}
    )
    assert task.output() == [str(world.root / "master")]
    assert not world.environments.exists()


def age(world: World, days: float) -> None:
    """Set the time of the last use of all environments."""
    for use in world.environments.glob("*.use"):
        os.utime(use, (time.time() - days * 86400,) * 2)


def test_environment_is_removed_after_thirty_days_without_use(world):
    write_wheel(world.wheels, "brush", "1.0")
    world.run("import brush", request={"pip": ["brush"]})
    age(world, 29)
    world.run("pass")
    assert any(world.environments.iterdir())
    age(world, 31)
    # Any task removes it, also one without an environment.
    world.run("pass")
    assert not any(world.environments.iterdir())
    assert "Building" in world.run("import brush", request={"pip": ["brush"]}).notes()


def test_use_counts_from_its_end_and_a_used_environment_is_kept(world):
    write_wheel(world.wheels, "brush", "1.0")
    code = "import pathlib, time\nprint('ready')\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"
    task = world.start(code, request={"pip": ["brush"]})
    eventually(lambda: task.output() == ["ready"])
    age(world, 31)
    cache = EnvironmentCache(world.environments)
    assert cache.remove_unused() == []
    (task.work / "go").touch()
    assert task.finish()["exit_code"] == 0
    assert cache.remove_unused() == []
    assert len(cache.remove_unused(time.time() + KEPT_S + 60)) == 1


def test_build_that_fails_leaves_nothing(tmp_path):
    def build(environment, lock):
        environment.mkdir()
        raise OSError("failed")

    with pytest.raises(OSError, match="failed"):
        EnvironmentCache(tmp_path).take("key", build, lambda: None)
    assert not (tmp_path / "key").exists()


def failed(task: Task) -> str:
    """Return why a task could not be launched."""
    result = task.finish()
    assert "launch_error" in result, (result, task.notes())
    assert result["launch_error"] in task.notes()
    assert not [path for path in task.environments.glob("*") if path.is_dir()]
    return result["launch_error"]


def test_interpreter_that_does_not_exist_is_named(world):
    assert "'/no/python3'" in failed(world.start("pass", request={"python": "/no/python3"}))
    message = failed(world.start("pass", request={"python": str(world.root / "master")}))
    assert f"Did you mean '{world.python}'?" in message
    message = failed(world.start("pass", request={"python": shutil.which("true")}))
    assert "not a working Python 3 interpreter" in message


def test_missing_uv_is_one_line_with_the_command_that_installs_it(world):
    bare = make_interpreter(world.root / "bare")
    message = failed(world.start("pass", request={"pip": ["brush"]}, supervisor=bare))
    assert "`pip install 'det_keras[environments]'`" in message
    assert "\n" not in message


def test_passwords_are_not_in_the_log(world):
    pip = [
        "brush @ http://me:secret@127.0.0.1:9/brush-1.0-py3-none-any.whl",
        "--extra-index-url http://a:secret@b",
    ]
    task = world.start("pass", request={"pip": pip}, UV_OFFLINE="0", UV_HTTP_RETRIES="0")
    assert task.finish()["exit_code"] == 1
    assert "brush @ http://***@127.0.0.1" in task.notes()
    assert "secret" not in task.notes()


def test_cache_of_a_machine_without_a_data_root_is_the_users():
    assert default_cache_folder({"HOME": "/me"}) == Path("/me/.cache/det_keras/environments")
    assert default_cache_folder({"HOME": "/me", "XDG_CACHE_HOME": "/c"}) == Path("/c/det_keras/environments")
    assert default_cache_folder({}).is_absolute()


def test_machine_without_uv_is_known_before_a_task_starts(world):
    bare = make_interpreter(world.root / "bare")
    code = (
        "from det_keras.launch.environments.preparing import refusal, EnvironmentRequest as Request\n"
        "for request in (Request(pip=('a',)), Request(requirements='r'), Request(python=sys.executable), Request()):\n"
        "    print((refusal(request, '/usr/bin:/bin') or 'none')[:20])\n"
    )
    done = subprocess.run(
        [str(bare), "-c", f"import sys\n{code}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.startswith("`environment.pip`") for line in done.stdout.splitlines()] == [
        True,
        True,
        False,
        False,
    ]


def test_supervisor_without_an_environment_imports_none_of_it():
    code = "import sys, det_keras.launch.supervisor; print('dataclasses' in sys.modules, 'hashlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_requirement_that_cannot_be_met_ends_the_task_with_uvs_words(world):
    write_wheel(world.wheels, "brush", "1.0")
    message = failed(world.start("pass", request={"pip": ["brush>=9"]}))
    assert "brush>=9" in message
    assert "No solution found" in message


def test_requirements_file_that_is_missing_is_named(world):
    assert "'r.txt' cannot be read" in failed(world.start("pass", request={"requirements": "r.txt"}))
    inner = world.start("pass", request={"requirements": "r.txt"}, files={"r.txt": "-r other.txt"})
    assert "'other.txt' cannot be read" in failed(inner)


def test_failure_of_the_network_is_a_failure_that_is_tried_again(world):
    variables = {"UV_OFFLINE": "0", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    task = world.start("pass", request={"pip": ["brush"]}, **variables)
    assert task.finish()["exit_code"] == 1
    assert "failure of the network" in task.notes()


def test_untrusted_certificate_and_missing_package_are_not_tried_again():
    assert not is_transient(
        ["error sending request for url", "  cause: invalid peer certificate: UnknownIssuer"]
    )
    assert not is_transient(["HTTP status client error (404 Not Found)"])
    assert is_transient(["cause: HTTP status server error (503 Service Unavailable)"])


def test_full_disk_is_said(world, tmp_path):
    assert "The disk is full" in explain(["error: x", "  cause: No space left on device (os error 28)"], "/f")
    small = tmp_path / "environments"
    small.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        write_wheel(world.wheels, "brush", "1.0")
        assert "The disk is full: the environment" in failed(world.start("pass", request={"pip": ["brush"]}))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_no_test_changed_the_environment_that_runs_them():
    names = {item.name for item in importlib.metadata.distributions()}
    assert names.isdisjoint({"brush", "shade", "paint", "slow", "easel"})
    assert json.dumps(sys.path).count(".det_keras") == 0
