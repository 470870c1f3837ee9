#!/usr/bin/env bash
# The scripts a user types: they parse, they explain themselves, they refuse what they do not know, and
# the helper that counts results counts right. Argument: the source folder. TAP output.
set -uo pipefail
cd "$1" || exit 1
export PYTHONDONTWRITEBYTECODE=1
python=/usr/bin/python3
[ -x "$python" ] || python=python3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0

check() {
    local name=$1
    shift
    number=$((number + 1))
    if "$@" >"$scratch/output" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$scratch/output"
    fi
}

exits_with() {  # CODE TEXT COMMAND...: exit code and a text in the output
    local code=$1 text=$2 got
    shift 2
    "$@" >"$scratch/text" 2>&1
    got=$?
    cat "$scratch/text"
    echo "exit code $got, expected $code and '$text'"
    [ "$got" = "$code" ] && grep -qF -- "$text" "$scratch/text"
}

parse_all() {
    local script failed=0
    for script in tools/build tools/test tools/demo .ci/run tests/tools/scripts_test.sh; do
        [ -x "$script" ] || { echo "$script has no run bit"; failed=1; }
        bash -n "$script" || failed=1
    done
    return $failed
}

# A folder of Meson's logs: one passing and one crashed program, one skip.
count() {
    local logs=$scratch/build/meson-logs
    mkdir -p "$logs"
    printf '%s\n' '{"name": "p:host / room.good", "result": "OK", "returncode": 0, "stdout": ""}' \
        '{"name": "p:host / room.bad", "result": "FAIL", "returncode": -11, "stdout": ""}' \
        '{"name": "p:host / room.away", "result": "SKIP", "returncode": 77, "stdout": "no device"}' \
        >"$logs/run-host.json"
    cat >"$logs/run-host.junit.xml" <<'X'
<testsuites><testsuite name="p.p:host / room.good.Suite"><testcase name="A" status="run"/>
<testcase name="B" status="run"/><testcase name="C" status="run"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>
X
    # Colours that a test wrote are copied into the XML as they are.
    sed -i "s/<testcase name=\"A\" status=\"run\"\/>/<testcase name=\"A\" status=\"run\"><system-out>$(printf '\033')[1m<\/system-out><\/testcase>/" \
        "$logs/run-host.junit.xml"
    grep -q "$(printf '\033')" "$logs/run-host.junit.xml" || return 1
    printf 'formatting\tpassed\t\n' >"$scratch/extra"
    exits_with 1 "3 passed, 1 failed, 2 skipped" "$python" tests/support/count_results.py "$scratch/extra" \
        "$scratch/build" &&
        grep -qF 'failed: room.bad: fail, exit code -11' "$scratch/text" &&
        grep -qF 'skipped: room.away: no device' "$scratch/text"
}

count_nothing() {
    : >"$scratch/none"
    exits_with 1 "0 passed, 0 failed" "$python" tests/support/count_results.py "$scratch/none" "$scratch"
}

# A Debian that lacks one package, whose archive refuses the first time: only that package is asked for,
# the lists are refreshed once, and a failed installation ends the build.
install_only_what_is_missing() {
    local bin=$scratch/bin
    mkdir -p "$bin"
    cat >"$bin/dpkg-query" <<'X'
#!/bin/sh
for word; do case $word in -* | libgtest-dev) ;; *) echo "installed $word" ;; esac; done
echo "dpkg-query: no packages found matching libgtest-dev" >&2
exit 1
X
    printf '#!/bin/sh\nexit 0\n' >"$bin/apt-cache"
    printf '#!/bin/sh\nexec "$@"\n' >"$bin/sudo"
    printf '#!/bin/sh\necho "$*" >>"%s"\n[ "$1" = update ]\n' "$scratch/apt" >"$bin/apt-get"
    chmod +x "$bin"/*
    env PATH="$bin:$PATH" tools/build --dir "$scratch/never" && return 1
    local install="install -y -q --no-install-recommends --no-remove libgtest-dev"
    printf '%s\n' "$install" "update -q" "$install" | diff - "$scratch/apt" && [ ! -e "$scratch/never" ]
}

# Everything but a package that only some tests want, which the archive lacks: asked for with --tests alone, and the build
# goes on, here up to an option that Meson does not know.
go_on_without_what_is_wished() {
    local bin=$scratch/bin install="install -y -q --no-install-recommends --no-remove python3-torch"
    sed -i 's/libgtest-dev/python3-torch/' "$bin/dpkg-query"
    rm -f "$scratch/apt"
    local options=(--dir "$scratch/wished" -Dno_such_option=1)
    exits_with 1 no_such_option env PATH="$bin:$PATH" tools/build "${options[@]}" && [ ! -e "$scratch/apt" ] || return 1
    exits_with 1 no_such_option env PATH="$bin:$PATH" tools/build --tests "${options[@]}" &&
        grep -q "not to be had: python3-torch" "$scratch/text" &&
        printf '%s\n' "$install" "update -q" "$install" | diff - "$scratch/apt"
}

echo 1..16
check "scripts parse and can be run" parse_all
check "build explains itself" exits_with 0 gpu-archs tools/build --help
check "build refuses an unknown argument" exits_with 2 "unknown argument '--fast'" tools/build --fast
check "test explains itself" exits_with 0 "N passed, N failed" tools/test --help
check "test refuses an unknown argument" exits_with 2 "unknown argument 'x'" tools/test x
check "demo refuses an unknown codec" exits_with 2 "'int3' is none of native" "$python" tools/demo_driver --only int3
check "demo refuses an unwritable file" exits_with 2 "No such file" "$python" tools/demo_driver --json /nowhere/f
check "measure explains itself" exits_with 0 "usage: tests/bench/measure" tests/bench/measure --help
check "measure refuses an unknown argument" exits_with 2 "'fast' is none of link" tests/bench/measure link fast
check "creation explains itself" exits_with 2 "usage: tests/bench/creation" tests/bench/creation --help
check "creation refuses a number that is none" exits_with 2 "usage: tests/bench/creation" tests/bench/creation build eight
check "library_size explains itself" exits_with 2 "usage: tests/bench/library_size" tests/bench/library_size --help
check "results are counted by cases, crashes and skips" count
check "build installs only what is missing" install_only_what_is_missing
check "build goes on without a package that only some tests want" go_on_without_what_is_wished
check "nothing run is a failure" count_nothing
