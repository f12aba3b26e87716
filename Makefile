# The entry points of the project. Each target installs what it needs by itself (scripts/setup).
#   make demo [KEEP=1] [GUEST=1]      make bench [QUICK=1] [BENCH="pods vhost switch rules loaded nic protocols"]      make test [PARTS="lint cargo smoke system differential"]
#   make install [PREFIX=/usr/local] [DESTDIR=]      make uninstall      make deb
#   make props [ROUNDS=10]      make soak [MINUTES=30]      make smoke [ARGS=--all]
#   make conformance [SUITE=4.0] [ARGS="--files ofproto.at"]
#   make controllers [ARGS="--versions 13 --part match"]
#   make ovn [QUICK=1] [OVN=sid] [SCALE=1] [OWN=1] [ARGS="--encap vxlan"]
#   make fuzz [SECONDS=180] [KEEP=1] [FUZZ="rings sessions messages connections segments fragments headers memberships lacpdus migrations"]
#   make cri [ARGS="rolled"]
#   make k8s [ARGS="--only rolled"]
#   make lab [QUICK=1] [SWITCH=heddle|ovs-dpdk] [PODS=1]      make lab PARITY=1 [SWITCH=heddle|ovs-kernel] [ARGS="marks"]
#   make lab OFFLOAD=1 [SWITCH=heddle|ovs-kernel] [ARGS="life"]      make lab MIGRATE=1
#   make pristine [PARTS="lint cargo"] [ARGS="--suite trixie"]
SHELL := /bin/bash
# Rustup's cargo comes before a distribution's, as rustup sets it up, unless PATH names it already.
export PATH := $(if $(findstring $(HOME)/.cargo/bin,$(PATH)),,$(HOME)/.cargo/bin:)$(PATH):/usr/sbin:/sbin
TARGET := $(or $(CARGO_TARGET_DIR),target)
HEDDLED ?= $(abspath $(TARGET)/release/heddled)
HEDDLE ?= $(dir $(HEDDLED))heddle
PREFIX ?= /usr/local
DEBS ?= $(abspath $(TARGET)/debs)
MANUAL = $(abspath $(TARGET))/manual
# The installed package, where this checkout has no programs: `make demo` shows that.
PACKAGED := $(if $(wildcard $(HEDDLED)),,$(and $(wildcard /usr/bin/heddle),$(wildcard /usr/sbin/heddled)))
BENCH ?= pods vhost switch rules
RESULTS := $(TARGET)/bench/last
COMMA := ,
FUZZ ?= rings sessions messages connections segments fragments headers memberships lacpdus migrations
export KEEP QUICK GUEST

.PHONY: install uninstall deb help setup build demo demo-begins test props soak smoke bench conformance controllers ovn cri k8s pristine lab fuzz models docs fmt lint clean

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: Debian packages, and Rust (HEDDLE_NO_RUSTUP=1: not Rust)
	@scripts/setup

build: setup ## Build the daemon, the tool heddle and the CNI plug-in (release)
	@cargo build --release --package heddle-switchd --bin heddled --package heddle-ctl --bin heddle --package heddle-cni --bin heddle-cni

demo: demo-begins $(if $(PACKAGED),,build) ## Two pods, two bridges, traffic, in private namespaces (KEEP=1 leaves it running)
	@$(if $(PACKAGED),scripts/setup demo && HEDDLED=$(PACKAGED) HEDDLE=/usr/bin/heddle,HEDDLED="$(HEDDLED)") demo/demo.sh

demo-begins:
	@[ "$$(id -u)" = 0 ] || { echo "make demo: network namespaces need root (sudo make demo)" >&2; exit 1; }
	@if [ -n "$(PACKAGED)" ]; then echo "make demo: nothing is built here, so it shows the installed package (make build: this checkout)"; \
	 else echo "Building heddled and heddle (2 to 6 minutes the first time; a line for each crate)"; fi

test: ## Unit, property, system and differential tests, formatting and lints
	@scripts/setup test
	@scripts/test $(PARTS)

props: setup ## Property tests again and again, each time from another seed (ROUNDS=10)
	@for i in $$(seq $(or $(ROUNDS),10)); do seed=$$RANDOM$$RANDOM; echo "round $$i: PROPTEST_RNG_SEED=$$seed"; \
	   PROPTEST_RNG_SEED=$$seed cargo test --quiet --workspace --lib || exit 1; done

soak: build ## Random system and differential tests again and again, each round from another seed (MINUTES=30)
	@HEDDLED="$(HEDDLED)" scripts/soak $(MINUTES)

smoke: setup ## What the pages name exists, in a minute (ARGS=--all: every target in its quick form, in a fresh clone, an hour; ARGS="demo lab": only these)
	@scripts/smoke $(ARGS)

install: $(if $(BUILT),,build) ## Put the programs, man pages, completions and the unit under PREFIX (/usr/local), below DESTDIR if that is given
	@[ -n "$(PREFIX)" ] || { echo "make install: PREFIX is empty (left out, it is /usr/local)" >&2; exit 2; }
	@rm -rf "$(MANUAL)" && "$(HEDDLE)" manual "$(MANUAL)" --heddled "$(HEDDLED)"
	@to="$(DESTDIR)$(PREFIX)"; set -e; \
	 install -D -m 755 "$(HEDDLED)" "$$to/sbin/heddled"; install -D -m 755 "$(HEDDLE)" "$$to/bin/heddle"; \
	 install -D -m 755 "$(dir $(HEDDLED))heddle-cni" "$$to/lib/cni/heddle-cni"; \
	 for program in sbin/heddled bin/heddle lib/cni/heddle-cni; do strip --strip-unneeded "$$to/$$program" 2>/dev/null || true; done; \
	 mkdir -p "$$to/lib/heddle" && ln -sfn ../../sbin/heddled "$$to/lib/heddle/ovs-vswitchd"; \
	 for page in "$(MANUAL)"/man?/*; do install -D -m 644 "$$page" "$$to/share/man/$$(basename "$$(dirname "$$page")")/$$(basename "$$page")"; done; \
	 for name in heddle heddled; do \
	   install -D -m 644 "$(MANUAL)/bash/$$name.bash" "$$to/share/bash-completion/completions/$$name"; \
	   install -D -m 644 "$(MANUAL)/zsh/_$$name" "$$to/share/zsh/vendor-completions/_$$name"; \
	   install -D -m 644 "$(MANUAL)/fish/$$name.fish" "$$to/share/fish/vendor_completions.d/$$name.fish"; done; \
	 mkdir -p "$$to/lib/systemd/system" && sed 's|@SBINDIR@|$(PREFIX)/sbin|' deploy/systemd/heddled.service >"$$to/lib/systemd/system/heddled.service"; \
	 install -D -m 644 deploy/systemd/heddle-tmpfiles.conf "$$to/lib/tmpfiles.d/heddle.conf"; \
	 for unit in heddle-node heddle-cni-sweep; do sed -e 's|/usr/bin/heddle |$(PREFIX)/bin/heddle |; s|/opt/cni/bin/heddle-cni|$(PREFIX)/lib/cni/heddle-cni|' deploy/node/$$unit.service >"$$to/lib/systemd/system/$$unit.service"; done; \
	 for page in README.md CHANGELOG.md SECURITY.md docs/*.md docs/*.svg deploy/kubernetes/* deploy/metrics/* deploy/node/* deploy/Containerfile; do \
	   install -D -m 644 "$$page" "$$to/share/doc/heddle/$$page"; done; \
	 $(if $(filter /usr,$(PREFIX)),install -D -m 644 deploy/systemd/heddled.default "$(DESTDIR)/etc/default/heddled",true); \
	 echo "$$to: sbin/heddled, bin/heddle, lib/cni/heddle-cni, manual pages, completions, share/doc/heddle, and heddled.service (make uninstall takes them away)"

uninstall: ## Take away what `make install` put there (the same PREFIX and DESTDIR)
	@[ -n "$(PREFIX)" ] || { echo "make uninstall: PREFIX is empty (left out, it is /usr/local)" >&2; exit 2; }
	@to="$(DESTDIR)$(PREFIX)"; \
	 rm -rf "$$to/lib/heddle" "$$to/share/doc/heddle"; \
	 rm -f "$$to/sbin/heddled" "$$to/bin/heddle" "$$to/lib/cni/heddle-cni" \
	   "$$to"/lib/systemd/system/{heddled,heddle-node,heddle-cni-sweep}.service "$$to/lib/tmpfiles.d/heddle.conf" "$$to"/share/man/man1/heddle.1 \
	   "$$to"/share/man/man1/heddle-*.1 "$$to"/share/man/man8/{heddled,heddle-cni}.8 "$$to"/share/bash-completion/completions/heddle{,d} \
	   "$$to"/share/zsh/vendor-completions/_heddle{,d} "$$to"/share/fish/vendor_completions.d/heddle{,d}.fish

deb: $(if $(BUILT),,build) ## Debian packages heddle-switch and heddle-tools, in target/debs
	@$(if $(BUILT),,scripts/setup package)
	@rm -rf "$(TARGET)/deb" && mkdir -p "$(TARGET)/deb/heddle" "$(DEBS)" && \
	 cp -a Makefile README.md CHANGELOG.md SECURITY.md debian deploy docs scripts "$(TARGET)/deb/heddle/" && cd "$(TARGET)/deb/heddle" && \
	 HEDDLED="$(HEDDLED)" dpkg-buildpackage -b -uc -us -d >../build.log 2>&1 || { tail -n 30 ../build.log >&2; exit 1; }
	@cp "$(TARGET)"/deb/*.deb "$(DEBS)/" && ls "$(DEBS)"/*.deb

bench: build ## Speed beside OVS, OVS-DPDK, the Linux bridge and veth; writes the tables of its pages (QUICK=1: short, writes it elsewhere; BENCH="pods vhost switch rules loaded nic protocols": parts)
	@$(if $(findstring loaded,$(BENCH)),scripts/setup bench)
	@rm -rf $(RESULTS); for part in $(BENCH); do case $$part in \
	   pods) run="bench/run $(if $(QUICK),--quick)";; \
	   loaded) run="bench/run --loaded $(if $(QUICK),--quick --loads idle$(COMMA)busy)";; \
	   vhost) run="bench/vhost --only heddle,ovs,one-copy $(if $(QUICK),--quick,--group page)";; \
	   switch) run="bench/switch --only heddle,ovs $(if $(QUICK),--quick,--group page)";; \
	   rules) run="bench/rules --page $(if $(QUICK),--quick)";; \
	   nic) run="bench/nic $(if $(QUICK),--rounds 1 --seconds 1)";; \
	   protocols) run="bench/protocols $(if $(QUICK),--rounds 1 --seconds 1)";; \
	   *) echo "no such part: $$part"; exit 2;; esac; \
	   HEDDLED="$(HEDDLED)" $$run --json $(RESULTS)/$$part.json || exit 1; done
	@$(if $(filter-out nic protocols,$(BENCH)),bench/report $(if $(QUICK),--into $(RESULTS)) $(patsubst %,$(RESULTS)/%.json,$(filter-out nic protocols,$(BENCH))))

conformance: build ## Open vSwitch's own test suite against heddled; writes the pages of its results (SUITE=4.0: a later version, which is built with its clients; ARGS="--files ofproto.at")
	@$(if $(findstring --offloads,$(ARGS)),scripts/setup lab && )scripts/setup $(if $(findstring --system,$(ARGS))$(findstring --offloads,$(ARGS)),system,conformance)
	@HEDDLED="$(HEDDLED)" tests/conformance/run $(if $(SUITE),--suite $(SUITE)) $(ARGS)

ovn: build ## Unmodified OVN on three chassis, on Heddle and on Open vSwitch, and what pods see (QUICK=1: on Heddle alone, a minute; OVN=sid: a later one; SCALE=1: its costs at 4,000 ports; OWN=1: OVN's own system tests; ARGS="--only snat")
	@scripts/setup $(if $(OWN),ovn-own,ovn)
	@HEDDLED="$(HEDDLED)" tests/ovn/$(if $(OWN),upstream,$(if $(SCALE),scale,run) $(if $(QUICK),--no-reference $(if $(SCALE),,--quick)) $(if $(OVN),--ovn $(OVN))) $(ARGS)

controllers: build ## Faucet, and os-ken's switch tester, on heddled and on Open vSwitch (ARGS="--versions 13 --part match")
	@HEDDLED="$(HEDDLED)" tests/controllers/run-faucet
	@HEDDLED="$(HEDDLED)" tests/controllers/run-tester $(ARGS)

cri: build ## Pods of containerd, asked as a kubelet asks, on Heddle: rolled, restarted, rebooted, with a second network (ARGS="rolled")
	@scripts/setup cri
	@HEDDLED="$(HEDDLED)" python3 tests/cri/containerd.py $(ARGS)

k8s: build ## A Kubernetes node, its kubelet and API server, on Heddle with heddle-cni; builds Kubernetes the first time, some 15 minutes (ARGS="--only rolled")
	@scripts/setup cri
	@HEDDLED="$(HEDDLED)" tests/k8s/run $(ARGS)

pristine: ## `make test` on an empty Debian 12 in a directory, where only git, make and this machine's Rust are (ARGS="--suite trixie"; PARTS="lint")
	@scripts/pristine $(ARGS) -- $(PARTS)

lab: build ## Emulated Linux guests on vhost-user ports (QUICK=1: one guest, under 90 s; SWITCH=ovs-dpdk: the peer; PODS=1: pods on VDUSE instead; PARITY=1 [SWITCH=heddle|ovs-kernel] [ARGS="marks"]: what passes with Open vSwitch's kernel datapath passes here; OFFLOAD=1 [SWITCH=] [ARGS=]: tc flower offload into a test card, and in the kernel; MIGRATE=1: a guest with a fast card and a virtio standby moves to another node, and virtual functions go to pods)
	@scripts/setup lab
	@HEDDLED="$(HEDDLED)" tests/lab/run-guests $(if $(PARITY)$(OFFLOAD),$(if $(SWITCH),--switch $(SWITCH)) $(if $(PARITY),parity) $(if $(OFFLOAD),card $(if $(SWITCH)$(ARGS),,flower flower_frames flower_conns)) $(if $(ARGS),-- $(ARGS)),\
	   $(if $(QUICK),--quick) $(if $(PODS),vduse ebpf host_stack marks bond) $(if $(MIGRATE),failover vf) --switch $(or $(SWITCH),heddle))

fuzz: setup ## Rings and sessions against a hostile guest and monitor, OpenFlow against a hostile controller, connection tracking and fragments against hostile ends, headers of tunnels, IGMP, MLD and LACP, files of migrations (SECONDS=180; KEEP=1 renews the corpora)
	@each=$$(( ($(or $(SECONDS),180) + $(words $(FUZZ)) - 1) / $(words $(FUZZ)) )); for part in $(FUZZ); do case $$part in \
	   rings) where=heddle-virtio:ring::tests::fuzz;; sessions) where=heddle-vhost-user:backend::tests::fuzz;; \
	   messages) where=heddle-openflow:tests::fuzz;; connections) where=heddle-ofproto:conn::tests::fuzz;; segments) where=heddle-conntrack:tests::fuzz;; \
	   fragments) where=heddle-conntrack:ipf::tests::fuzz;; headers) where=heddle-tunnel:tests::fuzz;; memberships) where=heddle-wire:membership::tests;; \
	   lacpdus) where=heddle-lacp:tests::fuzz;; \
	   migrations) where=heddle-migration:tests::fuzz;; \
	   *) echo "no such part: $$part"; exit 2;; esac; \
	   FUZZ_SECONDS=$$each $(if $(KEEP),FUZZ_KEEP=1) cargo test --release --package $${where%%:*} --lib $${where#*:}::explore -- --ignored --nocapture || exit 1; done

models: setup ## All interleavings of the concurrent parts (loom); undefined behaviour, with a nightly toolchain (miri); PARTS=neon: as AArch64 code
	@scripts/models $(PARTS)

docs: setup ## The pages as a site with search, in target/site (mdBook, which cargo builds the first time, some minutes)
	@scripts/tried
	@scripts/docs

fmt: setup ## Format the code
	@cargo fmt --all

lint: setup ## Formatting, clippy, who imports whom, wording, unused names, licences and advisories
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@cargo xtask deps
	@cargo xtask words
	@cargo xtask unused
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	 else echo "cargo-deny is not installed (cargo install cargo-deny): licences and advisories not checked"; fi

clean: ## Remove what was built
	@cargo clean
	@find tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
