#!/bin/sh
# Create the virtual environment and install Minka into it with one extra: sh tools/install.sh demo|dev|bench
# libllama is compiled for this machine if no compiled one is cached; a line shows how far it is.
set -eu
extra="$1"
if [ ! -x "$VENV/bin/python" ]; then
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do  # a name can be there and not run
        "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
        python=
    done
    if [ -z "$python" ]; then
        echo "Minka needs Python 3.11 or newer with venv; name one with make PYTHON=/path/to/python3" >&2
        exit 1
    fi
    "$python" -m venv "$VENV"
fi
python="$VENV/bin/python"
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

# GCC before 14 miscompiles AMX (see src/minka/native/build.py); without these two passes it does not.
if grep -qs amx_int8 /proc/cpuinfo; then
    major=$("${CXX:-g++}" -dumpversion 2>/dev/null | cut -d. -f1)
    if "${CXX:-g++}" --version 2>/dev/null | grep -q "Free Software" && [ "${major:-99}" -lt 14 ]; then
        CXXFLAGS="${CXXFLAGS:-} -fno-tree-dse -fno-dse -frecord-gcc-switches"
        export CXXFLAGS
    fi
fi

progress() {  # keep the compiler's [n/m] or [ n%] of a noisy build on one line; other lines only where they matter
    awk '/^ *\[ *[0-9]+(\/[0-9]+|%)\]/ { match($0, /\[[^]]*\]/); printf "\rcompiling libllama %s   ", substr($0, RSTART, RLENGTH); fflush(); n = 1; next }
         /error|ERROR/ { if (n) print ""; print; n = 0 }
         END { if (n) print "" }'
}

install() {
    log=$(mktemp)
    status=0
    { pip install --verbose "$@" 2>&1 && echo ok >"$log.ok"; } | tee "$log" | progress || status=$?
    if [ ! -e "$log.ok" ]; then
        tail -n 30 "$log" >&2
        echo "installation failed; the whole log is in $log" >&2
        exit 1
    fi
    rm -f "$log" "$log.ok"
    return $status
}

echo "installing minka[$extra] into $VENV (the first time libllama is compiled: about 6 minutes on two cores)"
install --editable ".[$extra]"
if ! "$python" -c 'import sys; from minka.native.library import library; sys.exit(library().amx_is_broken)'; then
    echo "the cached libllama breaks on this processor; compiling it again"
    install --force-reinstall --no-cache-dir --no-deps "llama-cpp-python>=0.3.36,<0.4"
fi
