#!/usr/bin/env bash
# Heddle in two minutes: two pods on br-int, an uplink bridge br-ex, OpenFlow rules, traffic, and a look inside.
#
#   make demo              runs and tears everything down, also on Ctrl-C
#   make demo KEEP=1       leaves it running and prints how to talk to it
#   make demo GUEST=1      the vhost-user step with an emulated Linux guest (docs/lab.md), which takes a minute more
#   HEDDLED=/usr/sbin/ovs-vswitchd demo/demo.sh     the same with the real Open vSwitch
#
# Everything happens in a private run directory and in network namespaces of its own: a switch that already runs on
# this machine, its bridges and its sockets are not touched.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
HEDDLED=$(realpath -m "${HEDDLED:-${CARGO_TARGET_DIR:-target}/release/heddled}")
HEDDLE=${HEDDLE:-$(dirname "$HEDDLED")/heddle}
KEEP=${KEEP:-}
GUEST=${GUEST:-}

[ "$(id -u)" = 0 ] || { echo "demo: network namespaces need root" >&2; exit 1; }
[ -x "$HEDDLED" ] || { echo "demo: no daemon at $HEDDLED (make build)" >&2; exit 1; }

run=$(mktemp -d /tmp/heddle-demo-XXXXXX)
chmod 755 "$run"
stem=heddle-$$
sw=$stem-switch red=$stem-red blue=$stem-blue world=$stem-world vm=$stem-vm sw2=$stem-switch2 green=$stem-green
export OVS_RUNDIR=$run OVS_LOGDIR=$run OVS_DBDIR=$run OVS_SYSCONFDIR=$run
steps=11 step=0

# With these the commands work as they are shown, by hand too (KEEP=1).
{
    echo "export RUN=$run OVS_RUNDIR=$run OVS_LOGDIR=$run OVS_DBDIR=$run OVS_SYSCONFDIR=$run"
    echo "export PATH=\"\$PATH:$(dirname "$HEDDLED"):/usr/sbin:/sbin\""
    for name in red blue world vm green; do echo "$name() { ip netns exec $stem-$name \"\$@\"; }"; done
} >"$run/env"

# Teardown lives in a script of its own, so that KEEP=1 can leave it behind as the way to stop.
cat >"$run/stop" <<STOP
#!/bin/sh
cd "$PWD" || exit
# Ends this demo: its daemons, its namespaces (with every device in them) and its run directory.
for name in ovs-vswitchd ovsdb-server node2/ovs-vswitchd node2/ovsdb-server; do
    pid=\$(cat "$run/\$name.pid" 2>/dev/null) || continue
    kill "\$pid" 2>/dev/null
    for i in \$(seq 100); do kill -0 "\$pid" 2>/dev/null || break; sleep 0.05; done
    kill -9 "\$pid" 2>/dev/null
done
[ -d "$run/guest" ] && tests/lab/guest-ctl stop "$run/guest"
for ns in $sw $red $blue $world $vm $sw2 $green; do
    for pid in \$(ip netns pids "\$ns" 2>/dev/null); do kill "\$pid" 2>/dev/null; done
    ip netns del "\$ns" 2>/dev/null
done
rm -rf "$run"
STOP
chmod +x "$run/stop"

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' off=$'\e[0m'; else bold='' dim='' off=''; fi
title() { step=$((step + 1)); printf '\n%s[%d/%d] %s%s\n' "$bold" $step $steps "$1" "$off"; }
say() { printf '      %s\n' "$@"; }
# Within 100 columns and 24 lines; a line that ends in a command to copy stays whole.
fit() {
    sed 's/[[:space:]]*$//' | sed "/ovs-appctl ofproto\/trace *'/!s/.\{94\}/&\n/g" | awk -v most=24 '
        NR <= most { print "      " $0 }
        END { if (NR > most) printf "      ... (%d more lines)\n", NR - most }'
}
prompt() { printf '    %s$ %s%s\n' "$dim" "${1//$run/\$RUN}" "$off"; } # TEXT: a command, on one line, to be copied
show() { # runs a command and shows it
    local words="$*"
    case $1 in vsctl | appctl) words="ovs-$words" ;; "$HEDDLE") words="heddle${words#"$HEDDLE"}" ;; esac
    prompt "$words"
    COLUMNS=94 "$@" 2>&1 | fit
}
pod() { # NAME COMMAND...
    local name=$1
    shift
    prompt "$name $*"
    ip netns exec "$stem-$name" "$@" 2>&1
}

finish() {
    local status=$?
    # What is left to do takes seconds: neither a second Ctrl-C nor the terminal's end stops it, nor what it starts.
    trap '' INT TERM HUP PIPE
    trap - EXIT
    set +e
    if [ $status -ne 0 ]; then
        printf '\ndemo: ended early (status %d)\n' $status
        if [ -s "$run/ovs-vswitchd.log" ] && [ $status -ne 130 ]; then
            echo "the daemon's last words:"
            tail -n 15 "$run/ovs-vswitchd.log"
        fi
    elif [ -n "$KEEP" ]; then
        return
    fi
    printf '\nRemoving the namespaces and ending the daemons (some seconds) ...\n'
    "$run/stop" >/dev/null 2>&1
    echo "Everything of the demo has been removed."
    exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 141' PIPE

# What iperf3 measured, in one line: who sent, how fast the receiver saw it, and what got lost.
summary() {
    python3 -c '
import json, sys
report = json.load(sys.stdin)
end = report["end"]
if "sum_received" in end and "retransmits" in end["sum_sent"]:
    print("      -> TCP: %.2f Gbit/s received, %d segments sent again" %
          (end["sum_received"]["bits_per_second"] / 1e9, end["sum_sent"]["retransmits"]))
elif "error" in report or "sum" not in end:
    print("      -> iperf3 gave up:", report.get("error", "no result"))
else:
    total = end["sum"]
    print("      -> UDP: %.0f Mbit/s, %d datagrams, %.2f %% lost, %.0f us jitter" %
          (total["bits_per_second"] / 1e6, total["packets"], total["lost_percent"], total["jitter_ms"] * 1000))'
}
iperf() { # SERVER-POD CLIENT-POD ADDRESS ARGS...
    local server=$1 client=$2 address=$3
    shift 3
    ip netns exec "$stem-$server" timeout 30 iperf3 -s -1 >/dev/null 2>&1 &
    local waiting=$!
    for _ in $(seq 50); do
        ip netns exec "$stem-$server" ss -Hltn | grep -q ':5201' && break
        sleep 0.1
    done
    prompt "$client iperf3 -c $address $*"
    local full=(0 0) before=()
    [[ " $* " != *" -u "* ]] || before=($(losses "$server" "$client"))
    ip netns exec "$stem-$client" timeout 30 iperf3 -J -c "$address" "$@" >"$run/iperf.json"
    wait $waiting || true
    summary <"$run/iperf.json"
    [ ${#before[@]} != 0 ] || return 0
    full=($(losses "$server" "$client"))
    say "   Lost where a buffer was full because its reader got no processor in time:" \
        "   $((full[0] - before[0])) before the switch, $((full[1] - before[1])) in front of the receiver's device, $((full[2] - before[2])) in the receiver's socket."
}
losses() { # SERVER-POD CLIENT-POD: packets lost in the sender's device, in the switch, in the receiver's sockets
    ip -n "$stem-$2" -j -s link show "${2}0" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["stats64"]["tx"]["dropped"])'
    appctl coverage/read-counter datapath_drop_tx_full 2>/dev/null || echo 0
    ip netns exec "$stem-$1" awk '/^Udp:/ { if (!n++) for (i = 1; i <= NF; i++) at[$i] = i; else print $at["RcvbufErrors"] }' /proc/net/snmp
}

say "What comes: two pods and an outside host on two bridges; a packet that a rule drops, found by" \
    "name; a virtual machine; a second node over Geneve; and what the switch tells of itself." \
    "Lines with \$ are commands, with their output below; 'red COMMAND' runs one in the pod red." \
    "After make demo KEEP=1 they work as shown in a shell that has read the file env, named below."
title "Start the database and the switch"
say "The configuration lives in the unmodified ovsdb-server; the switch reads it from there." \
    "Run directory (\$RUN below): $run" "For another shell: . $run/env"
ip netns add "$sw"
ip -n "$sw" link set lo up
ovsdb-tool create "$run/conf.db" /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server "$run/conf.db" --remote="punix:$run/db.sock" --pidfile="$run/ovsdb-server.pid" --detach --no-chdir \
    --unixctl="$run/ovsdb-server.ctl" -vconsole:off --log-file="$run/ovsdb-server.log"
export OVS_DB=unix:$run/db.sock
vsctl() { ovs-vsctl --timeout=20 --db="$OVS_DB" "$@"; }
vsctl --no-wait init
prompt "$(basename "$HEDDLED") unix:$run/db.sock --pidfile --detach --log-file --disable-system"
ip netns exec "$sw" "$HEDDLED" "unix:$run/db.sock" --pidfile="$run/ovs-vswitchd.pid" --detach --no-chdir \
    -vconsole:off --log-file="$run/ovs-vswitchd.log" --disable-system
daemon=$(cat "$run/ovs-vswitchd.pid")
appctl() { ovs-appctl --timeout=20 "$@"; }
say "$(appctl version | head -n 1): process $daemon, $(awk '/^VmRSS/ {printf "%.0f MiB", $2 / 1024}' "/proc/$daemon/status") of memory"

title "Wire it up: two pods, an integration bridge, an uplink bridge"
say "" \
    "  red 10.0.0.1 ───┐" \
    "                  ├── br-int ── patch-ex ═══ patch-int ── br-ex ── uplink ── world 10.0.0.100" \
    "  blue 10.0.0.2 ──┘                                                          (an outside host)" ""
for ns in "$red" "$blue" "$world"; do
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    for scope in all default; do
        ip netns exec "$ns" sh -c "echo 1 > /proc/sys/net/ipv6/conf/$scope/disable_ipv6" 2>/dev/null || true
    done
done
ip -n "$sw" link add uplink type veth peer name eth0 netns "$world"
ip -n "$sw" link set uplink up
[[ $(basename "$HEDDLED") == ovs-vswitchd* ]] && ip netns exec "$world" ethtool -K eth0 tx off >/dev/null 2>&1
show vsctl add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure
show vsctl add-br br-ex -- set bridge br-ex datapath_type=netdev
show vsctl add-port br-int red0 -- set interface red0 type=internal
show vsctl add-port br-int blue0 -- set interface blue0 type=internal
show vsctl add-port br-ex uplink
show vsctl add-port br-int patch-ex -- set interface patch-ex type=patch options:peer=patch-int
show vsctl add-port br-ex patch-int -- set interface patch-int type=patch options:peer=patch-ex
ip -n "$sw" link set red0 netns "$red"
ip -n "$sw" link set blue0 netns "$blue"
ip -n "$red" addr add 10.0.0.1/24 dev red0
ip -n "$blue" addr add 10.0.0.2/24 dev blue0
ip -n "$world" addr add 10.0.0.100/24 dev eth0
ip -n "$red" link set red0 up
ip -n "$blue" link set blue0 up
ip -n "$world" link set eth0 up

title "Program br-int with OpenFlow"
say "Table 0 holds the policy, table 1 forwards like a learning switch. br-int is in fail mode" \
    "'secure': without rules it forwards nothing. Telnet from red to blue is forbidden, by a rule" \
    "with the cookie 0x7e1."
red_port=$(vsctl get interface red0 ofport)
show ovs-ofctl add-flow br-int "cookie=0x7e1,priority=200,tcp,in_port=$red_port,ip_dst=10.0.0.2,tcp_dst=23,actions=drop"
show ovs-ofctl -O OpenFlow13 add-flow br-int "priority=100,ip,actions=goto_table:1"
show ovs-ofctl -O OpenFlow13 add-flow br-int "priority=100,arp,actions=goto_table:1"
show ovs-ofctl -O OpenFlow13 add-flow br-int "table=1,priority=0,actions=NORMAL"

title "Ping: pod to pod, and through both bridges to the outside"
pod red ping -n -c 3 -i 0.2 -W 2 10.0.0.2 | sed -E '/^    /b; s/^/      /' | grep -v '^ *$'
pod blue ping -n -c 3 -i 0.2 -W 2 10.0.0.100 | sed -E '/^    /b; s/^/      /' | grep -v '^ *$'

title "The policy: telnet from red to blue is dropped, other ports answer"
say "red connects to 10.0.0.2:23, then to 10.0.0.2:24:"
ip netns exec "$red" python3 - <<'PY'
import signal
import socket
signal.signal(signal.SIGINT, signal.SIG_DFL)
for port in (23, 24):
    try:
        socket.create_connection(("10.0.0.2", port), timeout=1.5)
        outcome = "connected"
    except ConnectionRefusedError:
        outcome = "answered: refused by blue itself, so the packet got there"
    except OSError:
        outcome = "no answer: the rule dropped it"
    print(f"      port {port}: {outcome}")
PY
if [ -x "$HEDDLE" ] && [[ $(basename "$HEDDLED") != ovs-vswitchd* ]]; then
    say "Somebody who does not know the rule asks why:"
    show "$HEDDLE" drops --port red0
fi

title "Throughput: TCP and UDP"
iperf blue red 10.0.0.2 -t 3
iperf blue red 10.0.0.2 -t 3 -P 4
iperf world red 10.0.0.100 -t 3
iperf blue red 10.0.0.2 -t 3 -u -b 200M -l 1400

# A guest's card is a vhost-user port: the guest's memory is mapped, packets are copied once from the rings of one into those of
# another. GUEST=1 boots a Linux guest in QEMU; else `heddle guest` plays the guest, with a tap device as its card.
guest() { # COMMAND...: in the guest
    if [ -n "$GUEST" ]; then
        printf '    %sguest$ %s%s\n' "$dim" "$*" "$off"
        tests/lab/guest-ctl run "$run/guest" "$*"
    else
        pod vm "$@"
    fi
}
title "A virtual machine: vhost-user ports"
if [[ $(basename "$HEDDLED") == ovs-vswitchd* ]] || [ ! -x "$HEDDLE" ]; then
    say "Not shown: this needs heddled and the command heddle beside it (make build)."
else
    show vsctl add-port br-int vm0
    show vsctl set interface vm0 type=dpdkvhostuserclient options:vhost-server-path="$run/vm0.sock"
    ip netns add "$vm"
    if [ -n "$GUEST" ]; then
        say "Booting a Linux guest in QEMU (emulated, so slow) ..."
        tests/lab/guest-ctl start "$run/guest" "$run/vm0.sock"
        guest "ip addr add 10.0.0.3/24 dev eth0 && ip link set eth0 up"
    else
        ip netns exec "$vm" "$HEDDLE" guest --port "listen:$run/vm0.sock" --tap eth0 >"$run/guest.log" 2>&1 &
        for _ in $(seq 50); do
            grep -q connected "$run/guest.log" && break
            sleep 0.1
        done
        ip -n "$vm" addr add 10.0.0.3/24 dev eth0
        ip -n "$vm" link set eth0 up
    fi
    guest ping -n -c 3 -i 0.2 -W 2 10.0.0.1 | sed -E '/^    /b; s/^/      /' | grep -v '^ *$'
    [ -n "$GUEST" ] || iperf red vm 10.0.0.1 -t 3
    show vsctl get interface vm0 status
    say "Two load generators (drivers of virtio rings, without an IP stack), 64-byte packets. They send" \
        "as fast as they can, more than one worker forwards: the loss is what is too much for it."
    vsctl add-br br-gen -- set bridge br-gen datapath_type=netdev
    for i in 0 1; do
        vsctl add-port br-gen gen$i -- set interface gen$i type=dpdkvhostuserclient options:vhost-server-path="$run/gen$i.sock"
    done
    prompt "heddle bench vhost --port listen:$run/gen0.sock --port listen:$run/gen1.sock --size 64 --seconds 2"
    "$HEDDLE" bench vhost --port "listen:$run/gen0.sock" --port "listen:$run/gen1.sock" --size 64 --seconds 2 2>&1 | fit
fi

title "A second node: pods over Geneve"
say "Another switch in another namespace: br-ex for its address, br-int for its pods, as with OVN:" "" \
    "  red, blue ── br-int ── gnv0 ═══ Geneve, network 7 ═══ gnv0 ── br-int ── green 10.0.0.4" \
    "               br-ex 172.31.0.1 ──────── cable ──────── br-ex 172.31.0.2" ""
node2() ( # COMMAND...: with the second switch's sockets
    export OVS_RUNDIR=$run/node2 OVS_LOGDIR=$run/node2 OVS_DBDIR=$run/node2 OVS_DB=unix:$run/node2/db.sock
    "$@"
)
mkdir "$run/node2"
for ns in "$sw2" "$green"; do
    ip netns add "$ns"
    ip -n "$ns" link set lo up
done
ip netns exec "$green" sh -c "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6" 2>/dev/null || true
ip -n "$sw" link add cable type veth peer name cable netns "$sw2"
ovsdb-tool create "$run/node2/conf.db" /usr/share/openvswitch/vswitch.ovsschema
node2 ovsdb-server "$run/node2/conf.db" --remote="punix:$run/node2/db.sock" --pidfile="$run/node2/ovsdb-server.pid" --detach --no-chdir \
    --unixctl="$run/node2/ovsdb-server.ctl" -vconsole:off --log-file="$run/node2/ovsdb-server.log"
node2 vsctl --no-wait init
node2 ip netns exec "$sw2" "$HEDDLED" "unix:$run/node2/db.sock" --pidfile="$run/node2/ovs-vswitchd.pid" --detach --no-chdir \
    -vconsole:off --log-file="$run/node2/ovs-vswitchd.log" --disable-system
node2 vsctl add-br br-ex -- set bridge br-ex datapath_type=netdev
node2 vsctl add-br br-int -- set bridge br-int datapath_type=netdev
node2 vsctl add-port br-int green0 -- set interface green0 type=internal
ip -n "$sw2" link set green0 netns "$green"
ip -n "$green" addr add 10.0.0.4/24 dev green0
ip -n "$green" link set green0 mtu 1442 up # what is left of 1500 bytes inside of Geneve
for ns in "$sw" "$sw2"; do
    ip -n "$ns" link set cable up
    ip -n "$ns" link set br-ex up
done
show vsctl add-port br-ex cable
node2 vsctl add-port br-ex cable
ip -n "$sw" addr add 172.31.0.1/24 dev br-ex
ip -n "$sw2" addr add 172.31.0.2/24 dev br-ex
show vsctl add-port br-int gnv0 -- set interface gnv0 type=geneve options:remote_ip=172.31.0.2 options:key=7
node2 vsctl add-port br-int gnv0 -- set interface gnv0 type=geneve options:remote_ip=172.31.0.1 options:key=7
for _ in $(seq 50); do # until the neighbours have been asked for
    ip netns exec "$red" ping -n -c 1 -W 1 10.0.0.4 >/dev/null && break
done
pod red ping -n -c 3 -i 0.2 -W 2 10.0.0.4 | sed -E '/^    /b; s/^/      /' | grep -v '^ *$'
iperf green red 10.0.0.4 -t 3
say "What happens to such a packet, rule by rule:"
green_mac=$(ip -n "$green" -o link show green0 | sed 's/.*ether \([0-9a-f:]*\).*/\1/')
show appctl ofproto/trace br-int "in_port=$red_port,icmp,nw_dst=10.0.0.4,nw_ttl=64,dl_dst=$green_mac"

title "What the OpenFlow rules counted"
show ovs-ofctl -O OpenFlow13 dump-flows br-int

title "What the datapath made of them"
say "Each line is one cached decision: a wildcarded match, its counters, the ports it leads to." \
    "A packet that hits one of them never meets the OpenFlow tables."
pod red ping -n -q -c 2 -i 0.2 10.0.0.100 >/dev/null
show appctl dpif/show
red_number=$(appctl dpif/show | sed -n 's|^ *red0 [0-9]*/\([0-9]*\):.*|\1|p')
say "Some of IPv4 packets from red, port $red_number of the datapath:"
prompt "ovs-appctl dpctl/dump-flows | grep -m 3 'in_port($red_number).*0x0800'"
appctl dpctl/dump-flows >"$run/flows.txt"
grep -m 3 "in_port($red_number).*0x0800" "$run/flows.txt" | fit
say "MAC addresses that br-int learned:"
show appctl fdb/show br-int

title "What each worker thread did"
say "A worker is a thread that receives, looks up and sends. With segmentation offload one 'packet'" \
    "is up to 64 KiB: look at bytes per packet beside cycles per packet. ? in heddle top" \
    "explains each column; ovs-appctl dpif-netdev/pmd-stats-show has the counters of Open vSwitch."
if [ -x "$HEDDLE" ] && [[ $(basename "$HEDDLED") != ovs-vswitchd* ]]; then
    pod red ping -q -i 0.01 -c 200 10.0.0.2 >/dev/null &
    pinging=$!
    show "$HEDDLE" top --once
    wait $pinging || true
else
    show appctl dpif-netdev/pmd-stats-show
fi
say "$(awk '/^VmRSS/ {printf "%.0f MiB of memory", $2 / 1024}' "/proc/$daemon/status") now"

if [ -n "$KEEP" ]; then
    cat <<TEXT

${bold}It keeps running.${off} In a shell of root, for the commands above and below:
    . $run/env
What to try next:
    ovs-vsctl show
    heddle top                                            # q ends it, ? explains the columns
    red ping -c 3 10.0.0.2
    red nc -z -w 1 10.0.0.2 23; heddle drops --port red0  # the rule that drops telnet, by name
    heddle capture --port red0 --seconds 5 --write /tmp/red.pcapng   # for Wireshark or tcpdump -r
    ovs-appctl ofproto/trace br-int in_port=$red_port,tcp,nw_dst=10.0.0.2,tp_dst=23
    tail -f $run/ovs-vswitchd.log
Stop and remove it:
    $run/stop
TEXT
else
    printf '\nDone. '
fi
