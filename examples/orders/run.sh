#!/bin/sh
# Runs the order service: `sh run.sh`. Its tests: `sh run.sh test`.
#
# It installs what Python needs, and starts PostgreSQL if that is here, or if root can install it
# with apt-get; otherwise the orders are in SQLite. DATABASE_URL and ORDERS_BROKER name servers of
# your own. The tests run on both databases, in databases of their own.
set -eu
cd "$(dirname "$0")"
mkdir -p data
project=$(cd ../.. && pwd)

# Python: the active environment, or that of the project, or a new one here.
for venv in "${VIRTUAL_ENV:-}" "$project/.venv" .venv; do
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && break
done
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
python=$(cd "$venv/bin" && pwd)/python
if ! "$python" -c 'import cometmq' 2>/dev/null; then
    echo "installing CometMQ: compiles for one to three minutes"
    "$python" -m pip install -q "$project"
fi
"$python" -m pip install -q --disable-pip-version-check --root-user-action ignore -r requirements.txt

# PostgreSQL, on a socket that only its owner and root can open.
postgres=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
owned=$PWD/data
as=""
if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root
    as="runuser -u postgres --"
    owned=/var/lib/postgresql
    if [ -z "$postgres" ] && [ -z "${DATABASE_URL:-}" ] && command -v apt-get >/dev/null; then
        echo "installing PostgreSQL"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends postgresql >/dev/null
        postgres=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    fi
fi
if [ -n "${DATABASE_URL:-}" ]; then
    echo "database: \$DATABASE_URL"
elif [ -z "$postgres" ]; then
    echo "database: SQLite, $PWD/orders.db: PostgreSQL is not installed"
else
    store=$owned/cometmq-orders
    cd / # PostgreSQL's account may not be allowed into this folder
    [ -d "$store" ] || $as "$postgres/initdb" -D "$store" -U postgres -A trust >/dev/null
    if $as "$postgres/pg_ctl" -D "$store" status >/dev/null; then # another run started it
        sockets=$(sed -n 5p "$store/postmaster.pid")
    else
        sockets=$(mktemp -d)
        [ -z "$as" ] || chown postgres "$sockets"
        $as "$postgres/pg_ctl" -D "$store" -w -s -l "$store/log" \
            -o "-k $sockets -c listen_addresses=''" start
        trap '$as "$postgres/pg_ctl" -D "$store" -s -m fast stop; rm -rf "$sockets"' EXIT
    fi
    cd - >/dev/null
    export DATABASE_URL="postgresql+asyncpg://postgres@/postgres?host=$sockets"
    echo "database: PostgreSQL, $store"
fi

# A signal ends the service first, and then the database.
export ORDERS_BROKER="${ORDERS_BROKER:-embedded:data}"
if [ "${1:-}" = test ]; then
    "$python" -m pytest
    [ -n "${sockets:-}" ] || exit 0
    "$postgres/dropdb" -h "$sockets" -U postgres --if-exists tests
    "$postgres/createdb" -h "$sockets" -U postgres tests
    TEST_DATABASE_URL="postgresql+asyncpg://postgres@/tests?host=$sockets" "$python" -m pytest
    exit
fi
trap 'kill "$service"' INT TERM HUP
"$python" -m orders &
service=$!
wait "$service" || wait "$service"
