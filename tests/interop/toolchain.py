"""Finds or installs what the tests against real RocketMQ programs need.

Everything lands below one cache folder (``COMETMQ_TOOLS_CACHE``, by default
``~/.cache/cometmq-tests``), so that a second run needs no network. Each function returns the path
of a thing that is ready to use, and is safe to call from several test processes at once.

Where a tool of the system is missing (a JDK, Maven, Go, Node.js), a developer's run skips the
test; with ``CI`` set in the environment the tool is installed through apt, and if that fails, so
does the test.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if not any(Path(folder, "support").is_dir() for folder in sys.path):  # benchmarks import it, too
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from cometmq.spark.java import JAVA_OLDEST, java_version
from support.runner.tiers import find_program

HERE = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("COMETMQ_TOOLS_CACHE", Path.home() / ".cache" / "cometmq-tests")
).expanduser()
ON_CI = bool(os.environ.get("CI"))

CPP_CLIENT = "rocketmq==0.4.4"
NATS_CLIENT = "nats-py==2.16.0"
GRPC_CLIENT = "rocketmq-python-client==5.1.2"
GRPC_JAVA_CLIENT = "5.2.0"
UVLOOP = "uvloop==0.23.0"
CONNECT = (
    *("grpcio==1.85.3", "grpcio-status==1.85.3", "googleapis-common-protos==1.76.0"),
    "zstandard==0.25.0",
)
"""What the extras ``connect`` and ``pipelines`` of PySpark need besides."""
BROWSER = ("playwright==1.65.2", "axe-playwright-python==0.1.8")
"""What drives Chromium, and checks that pages are accessible."""
KAFKA_VERSION = "4.1.0"
NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
COLLECTOR_BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
INSTALL_SECONDS_MAX = 1200

PACKAGES = {
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "go": "golang-go",
    "node": "nodejs",
    "npm": "npm",
    "etcd": "etcd-server",
    "promtool": "prometheus",
    "chromium": "chromium",
}
"""The Debian package each command comes from."""

PATIENT_CONNECT = "-Dcom.rocketmq.remoting.client.connect.timeout=60000"
"""Java's clients give up a connection after 3 s, which a busy machine may need for their JVM."""


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cometmq.tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
"""Names one artifact, whose dependencies Maven finds."""


_BEHIND = (
    "import os, site; list(map(site.addsitedir,"
    " filter(None, os.environ.get('PACKAGES_BEHIND', '').split(os.pathsep))))\n"
)
"""A line of a ``.pth`` file: packages of another environment, found behind those of its own."""


class ToolchainError(Exception):
    """A tool could not be installed; the text carries the end of its own output."""


def command(name: str) -> str:
    """The path of a system command; installs it on CI, skips the test elsewhere."""
    found = find_program(name)
    if found is None and ON_CI:
        _apt_install(PACKAGES[name])
        found = shutil.which(name)
        if found is None:
            raise ToolchainError(f"{PACKAGES[name]} is installed, but gives no command {name}")
    if found is None:
        pytest.skip(f"needs {name} (package {PACKAGES[name]}), which is not installed")
    return found


@functools.cache
def java_home() -> Path:
    """The home of a Java that Spark runs on; installs it on CI, skips the test elsewhere."""
    asked = os.environ.get("JAVA_HOME")
    java = Path(asked, "bin", "java") if asked else Path(command("java"))
    version = java_version(java) or JAVA_OLDEST
    if version < JAVA_OLDEST and ON_CI:
        _apt_install(PACKAGES["java"])
        return Path(sorted(Path("/usr/lib/jvm").glob(f"java-{JAVA_OLDEST}-*"))[0])
    if version < JAVA_OLDEST:
        pytest.skip(f"needs Java {JAVA_OLDEST} or newer; {java} is of version {version}")
    return java.resolve().parent.parent


def rocketmq_jars(profile: str, version: str) -> str:
    """The class path of the official jars of a profile of java/pom.xml."""
    return _maven_jars(profile, f"rocketmq.version={version}", version)


def grpc_jars() -> str:
    """The class path of RocketMQ's Java client for gRPC."""
    return _maven_jars("grpc", f"grpc.version={GRPC_JAVA_CLIENT}", GRPC_JAVA_CLIENT)


def kafka_jars() -> str:
    """The class path of Kafka's official jars, which the benchmarks run."""
    return _maven_jars("kafka", f"kafka.version={KAFKA_VERSION}", KAFKA_VERSION)


def _maven_jars(profile: str, definition: str, version: str) -> str:
    folder = CACHE / f"{profile}-{version}"
    with _built_once(folder) as build:
        if build:
            _run(
                [
                    command("mvn"), "-q", "-B", "-f", str(HERE / "java" / "pom.xml"),
                    "-P", profile, f"-D{definition}",
                    f"{DEPENDENCY_PLUGIN}:copy-dependencies",
                    f"-DoutputDirectory={build}", "-DincludeScope=runtime",
                ]
            )  # fmt: skip
    return f"{folder}/*"


def spark_jars(coordinates: str, *groups: str) -> list[Path]:
    """The jars of a table format or connector of Spark, without what Spark has itself.

    Args:
        coordinates: as ``spark.jars.packages`` takes them, ``group:artifact:version``.
        groups: further groups of Maven whose jars it needs to run.
    """
    group, artifact, version = coordinates.split(":")
    folder = CACHE / "-".join((artifact, version, *groups))
    with _built_once(folder) as build:
        if build:
            pom = build / "pom.xml"
            pom.write_text(_POM.format(group=group, artifact=artifact, version=version))
            _run(
                [
                    command("mvn"), "-q", "-B", "-f", str(pom),
                    f"{DEPENDENCY_PLUGIN}:copy-dependencies",
                    f"-DoutputDirectory={build}", "-DincludeScope=runtime",
                    f"-DincludeGroupIds={','.join((group, 'io.unitycatalog', *groups))}",
                ]
            )  # fmt: skip
    return sorted(folder.glob("*.jar"))


def pyspark(minor: str) -> Path:
    """A folder for ``PYTHONPATH`` with a minor version of PySpark, such as ``4.1``."""
    folder = CACHE / f"pyspark-{minor}"
    with _built_once(folder) as build:
        if build:
            pip = [sys.executable, "-m", "pip", "install", "-q"]
            _run([*pip, "--target", str(build), f"pyspark=={minor}.*"])
    return folder


def spark_connect() -> Path:
    """A folder for ``PYTHONPATH`` with what PySpark needs besides for Spark Connect.

    They are in no extra of ours: PySpark asks for newer ones than the oldest that we work with.
    """
    return _folder_of("spark-connect", *CONNECT)


def browser() -> Path:
    """A folder for ``sys.path`` with Playwright and axe."""
    return _folder_of("browser", *BROWSER)


def _folder_of(name: str, *packages: str) -> Path:
    """A folder with packages for this Python."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / f"{name}-{packages[0].rpartition('=')[2]}-py{tag}"
    with _built_once(folder) as build:
        if build:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile"]
            _run([*pip, "--target", str(build), *packages])
    return folder


def java_classes(program: str, jars: str) -> str:
    """The class path of ``java/<program>/*.java``, compiled against ``jars``, and of the jars."""
    sources = sorted((HERE / "java" / program).glob("*.java"))
    folder = CACHE / f"classes-{program}-{_fingerprint(sources, jars)}"
    with _built_once(folder) as build:
        if build:
            names = [str(path) for path in sources]
            _run([command("javac"), "-nowarn", "-proc:none", "-cp", jars, "-d", str(build), *names])
    return f"{folder}:{jars}"


def go_client() -> Path:
    """The program of go/, built with the official Go client."""
    sources = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]
    folder = CACHE / f"go-{_fingerprint(sources)}"
    with _built_once(folder) as build:
        if build:
            _run([command("go"), "build", "-o", str(build / "client"), "."], cwd=HERE / "go")
    return folder / "client"


def schema_registry() -> Path:
    """The program of registry/: franz-go's registry in memory, with Confluent's interface."""
    sources = [HERE / "registry" / name for name in ("go.mod", "go.sum", "main.go")]
    folder = CACHE / f"registry-{_fingerprint(sources)}"
    with _built_once(folder) as build:
        if build:
            target = str(build / "registry")
            _run([command("go"), "build", "-o", target, "."], cwd=HERE / "registry")
    return folder / "registry"


def nats_server() -> Path:
    """The program of NATS, which the benchmarks run, built from the Go module."""
    folder = CACHE / f"nats-{NATS_SERVER.rpartition('@')[2]}"
    with _built_once(folder) as build:
        if build:
            _run([command("go"), "install", NATS_SERVER], env=os.environ | {"GOBIN": str(build)})
    return folder / "nats-server"


def otel_collector() -> Path:
    """The program of an OpenTelemetry Collector with the parts that otel/builder.yaml names.

    Building it takes three minutes of processor time, so only a long run does.
    """
    manifest = HERE / "otel" / "builder.yaml"
    folder = CACHE / f"collector-{_fingerprint([manifest], COLLECTOR_BUILDER)}"
    with _built_once(folder) as build:
        if build:
            environment = os.environ | {"GOBIN": str(build), "CGO_ENABLED": "0"}
            _run([command("go"), "install", COLLECTOR_BUILDER], env=environment)
            _run([str(build / "builder"), "--config", str(manifest)], cwd=build, env=environment)
    return folder / "built" / "collector"


def node_client() -> Path:
    """A folder that holds node/client.js and the npm packages it needs."""
    sources = [HERE / "node" / n for n in ("package.json", "package-lock.json", "client.js")]
    folder = CACHE / f"node-{_fingerprint(sources)}"
    with _built_once(folder) as build:
        if build:
            for source in sources:
                shutil.copy(source, build)
            _run([command("npm"), "ci", "--no-audit", "--no-fund"], cwd=build)
    return folder


def cpp_python() -> Path:
    """A Python that has the wrapper of the C++ client, in an environment of its own."""
    return _python_with("cpp", CPP_CLIENT)


def grpc_python() -> Path:
    """A Python that has RocketMQ's client for gRPC, in an environment of its own."""
    return _python_with("grpc", GRPC_CLIENT)


def nats_python() -> Path:
    """A Python that has the client of NATS and uvloop, in an environment of its own."""
    return _python_with("nats", NATS_CLIENT, UVLOOP)


def _python_with(name: str, client: str, *others: str) -> Path:
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / f"{name}-{client.rpartition('=')[2]}-py{tag}"
    with _built_once(folder) as build:
        if build:
            _run([sys.executable, "-m", "venv", str(build)])
            _run([str(build / "bin" / "python"), "-m", "pip", "install", "-q", client, *others])
    return folder / "bin" / "python"


def airflow_python() -> Path:
    """A Python that has Airflow, in an environment of its own."""
    return _python_of("airflow")


def dagster_python() -> Path:
    """A Python that has Dagster, in an environment of its own."""
    return _python_of("dagster")


def _python_of(name: str) -> Path:
    """A Python with the packages that the requirements.txt of a folder names.

    Folders of packages in the variable ``PACKAGES_BEHIND`` are searched behind them.
    """
    requirements = HERE / name / "requirements.txt"
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / f"{name}-{_fingerprint([requirements], _BEHIND)}-py{tag}"
    with _built_once(folder) as build:
        if build:
            _run([sys.executable, "-m", "venv", str(build)])
            pip = [str(build / "bin" / "python"), "-m", "pip", "install", "-q"]
            _run([*pip, "-r", str(requirements)])
            own = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(build)}))
            (own / "packages_behind.pth").write_text(_BEHIND)
    return folder / "bin" / "python"


@contextmanager
def _built_once(folder: Path) -> Iterator[Path | None]:
    """Give a folder to fill, or None if it is there already; it counts only when filled whole."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = folder / ".complete"
    with (CACHE / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            yield None
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
        done.touch()


def _fingerprint(sources: list[Path], *extra: str) -> str:
    digest = hashlib.sha256()
    for part in (*(path.read_bytes() for path in sources), *(text.encode() for text in extra)):
        digest.update(part)
    return digest.hexdigest()[:12]


@functools.cache
def _apt_install(package: str) -> None:
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    quiet: dict[str, str] = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    _run([*prefix, "apt-get", "-q", "update"], env=quiet)
    _run([*prefix, "apt-get", "-q", "-y", "install", "--no-install-recommends", package], env=quiet)


def _run(
    arguments: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> None:
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise ToolchainError(
            f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )


def main() -> None:
    """Install everything at once: ``python tests/interop/toolchain.py``."""
    from support.runner.versions import ALL_VERSIONS

    steps: list[Callable[[], object]] = [
        *(functools.partial(rocketmq_jars, "client", version) for version in ("4.9.8", "5.3.3")),
        *(functools.partial(rocketmq_jars, "tools", version) for version in ("4.9.8", "5.3.3")),
        *(functools.partial(rocketmq_jars, "servers", version) for version in ALL_VERSIONS),
        go_client,
        node_client,
        cpp_python,
    ]
    for step in steps:
        print("ready", step())


if __name__ == "__main__":
    main()
