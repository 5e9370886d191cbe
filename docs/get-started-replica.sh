#!/usr/bin/env bash
# One of several replicas that share the extensions of docs/get-started.md: get-started-replica.sh
# PORT PORT PORT. The ports of this machine are those of the view of all, of this replica for the
# others, and of its status page.
set -euo pipefail
exec "${LATCHKEY:-bin/latchkey}" manager --guarded-by-admission --metrics-bind-address=0 \
	--health-probe-bind-address=0 --buckets=8 --leader-election-id=two --leader-election-namespace=default \
	--state-api --state-api-group=two.example.com --state-api-service=two --state-api-namespace=default \
	--state-api-address=192.0.2.1 --state-api-bind-address="127.0.0.1:$1" \
	--state-api-peer-bind-address="127.0.0.1:$2" --state-api-peer-address="127.0.0.1:$2" \
	--status-address="127.0.0.1:$3" > "${TMPDIR:-/tmp}/latchkey-replica-$1.log" 2>&1
