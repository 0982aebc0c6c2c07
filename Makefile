# teiji: what can be done here. `make` alone lists it.

.DEFAULT_GOAL := help
.PHONY: help deps build guest check test soak bench lab lab-prepare demo experiment experiments

CARGO ?= cargo
# Options of `make lab`, for example: make lab LAB="--kernel stable --guests 2 --sriov"
LAB ?= --guests 1
# Of `make experiment`: which one; KEEP=1 copies the run into experiments/runs/.
NAME ?= path
KEEP ?=
# Of `make soak`: cases of each test, and of each test of the agent, whose cases use files and many simulated kills; how often
# scx_vcpu comes and goes in the lab, and how many guests boot under it.
CASES ?= 20000
AGENT_CASES ?= 2000
SCX_CYCLES ?= 1000
SCX_BOOTS ?= 100
EXPERIMENTS = path sip agent apply admission edf-delay edf-cost overhead vcpu

# Says what comes; cargo and the programs tell how far they are.
compiling = @echo "compiling (with 2 CPUs about 4 minutes the first time, then seconds); after that $(1)"

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what building and testing need, if it is missing (root)
	@lab/deps.sh

build: deps ## build everything
	$(CARGO) build --workspace

guest: deps ## build the program for guests, static, so that it runs in any: target/guest/teiji-guest
	$(call compiling,the program is target/guest/teiji-guest)
	@CARGO="$(CARGO)" crates/guest/build-static.sh

check: ## format, lint, documentation, unit and property tests: no lab, no root (3 minutes once it is compiled)
	@CARGO="$(CARGO)" .ci/check

test: deps ## check format and documentation, lint, and run every test, those in the lab too (root, half an hour)
	@CARGO="$(CARGO)" .ci/test

soak: deps ## long tests: property and fuzz tests with new cases, a trace of 24 simulated hours, many starts of scx_vcpu in the lab (root)
	SOAK_HOURS=24 PROPTEST_CASES=$(CASES) $(CARGO) test --release -p teiji-model -p teiji-policy -p teiji-analysis
	PROPTEST_CASES=$(CASES) $(CARGO) test --release -p teiji-control -p teiji-guest --lib --bins --test identity --test plan --test suggest
	PROPTEST_CASES=$(CASES) $(CARGO) test --release -p teiji-bpf --lib -- qdisc_edf::link
	PROPTEST_CASES=$(AGENT_CASES) $(CARGO) test --release -p teiji-agent --lib --test apply
	SCX_CYCLES=$(SCX_CYCLES) SCX_BOOTS=$(SCX_BOOTS) $(CARGO) test --workspace --test vcpu -- many_

bench: ## measure the join, the admission test, the placement of 1,000 VMs, observing a host with 1,000 taps, and counters of 200 VMs (root)
	$(CARGO) bench -p teiji-analysis -p teiji-control -p teiji-host

lab-prepare: deps ## make the lab's root file system, if it is missing (root, 1 GB to download)
	$(call compiling,making the lab's root file system takes 2 to 5 minutes)
	$(CARGO) run -p teiji-lab -- prepare

lab: deps ## a shell in a running KVM host with a guest (root)
	$(call compiling,booting takes up to a minute)
	$(CARGO) run -p teiji-lab -- shell $(LAB)

demo: deps ## real SIP calls to a VM, undisturbed and with CPU hogs; leaves target/demo/report.html (root)
	$(call compiling,the demo takes 2 to 5 minutes)
	$(CARGO) build --workspace --bins
	$(CARGO) run -q -p teiji-experiments --bin demo

experiment: deps ## run one experiment, NAME=path; KEEP=1 keeps the run in experiments/runs (root)
	$(call compiling,an experiment takes 5 to 20 minutes)
	$(CARGO) build --workspace --bins
	$(CARGO) run -q -p teiji-experiments --bin $(NAME) -- $(if $(KEEP),--keep)

experiments: ## run every experiment (root)
	@for name in $(EXPERIMENTS); do $(MAKE) --no-print-directory experiment NAME=$$name || exit 1; done
