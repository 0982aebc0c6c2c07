"""Kills teiji at random moments on a KVM host, and reads the host's settings afterwards, without teiji.

Run by Python 3 in the lab host, as root:

    driver.py CONFIG snapshot       prints every setting that it reads, as JSON
    driver.py CONFIG kills          rounds of apply and of rollback, in turn, until enough of each were killed
    driver.py CONFIG vanish         rounds of apply to a VM that is killed meanwhile, and teiji in about half of them,
                                    until enough of them were not committed

CONFIG is a JSON file: see `Config` in test_host.rs. One line of JSON is printed for each round, and one after `kills`.

It shares no code with teiji. It reads the settings from the kernel: sched_getaffinity(2), sched_getscheduler(2),
/proc, /sys, the existing control groups. It reads not only what the policy names but every thread of the VM, every
interrupt, every CPU and every group, so that it notices changes of other settings too.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

GROUPS = "/sys/fs/cgroup"
HALT_POLL = "/sys/module/kvm/parameters/halt_poll_ns"
LATENCY = "/sys/devices/system/cpu/cpu%d/power/pm_qos_resume_latency_us"
# Shares of the kills that come during a run's working time, and just after one of its settings has changed; the others
# are spread over the whole run.
AT_TIME, AT_SETTING = 0.4, 0.45
PATIENCE_S = 60


def read(path):
    """The text of a file, or None if there is none: of a thread, if it has ended, be it after its file was opened."""
    try:
        with open(path) as f:
            return f.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def cpus(text):
    """A list such as `0-1,3` as a sorted list of numbers."""
    ends = [part.split("-") for part in text.split(",")]
    return sorted({n for e in ends for n in range(int(e[0]), int(e[-1]) + 1)})


def threads(pid):
    """Names of the VM's threads by id, without QEMU's pool of I/O threads, which grows and shrinks."""

    def named():
        names = {int(tid): read(f"/proc/{pid}/task/{tid}/comm") for tid in os.listdir(f"/proc/{pid}/task")}
        main = names.get(pid)
        # Until it runs and sets its own, a new thread of the pool has the name of its creator, the main thread.
        named = {tid: name for tid, name in names.items() if tid == pid or name != main}
        return {tid: name for tid, name in named.items() if name not in (None, "worker")}

    # A thread may end, or begin, during a look.
    while True:
        found = named()
        time.sleep(0.02)
        if named() == found:
            return found


def names(config):
    """Names of the settings that are read, for people."""
    yield "halt_poll"
    yield from (f"latency {cpu}" for cpu in range(os.cpu_count()))
    yield from (f"irq {irq}" for irq in os.listdir("/proc/irq") if irq.isdigit())
    yield from (f"group {folder[len(GROUPS):] or '/'}" for folder, _, _ in os.walk(GROUPS))
    for tid, name in threads(config["pid"]).items() if config["pid"] else ():
        yield from (f"thread {tid} {name} {what}" for what in ("cpus", "class", "group"))


def look(name):
    """Present value of a setting."""
    kind, _, which = name.partition(" ")
    if kind == "halt_poll":
        return read(HALT_POLL)
    if kind == "latency":
        return read(LATENCY % int(which))
    if kind == "irq":
        return cpus(read(f"/proc/irq/{which}/smp_affinity_list"))
    if kind == "group":
        return [read(f"{GROUPS}{which}/{file}") for file in ("cpu.weight", "cpu.max", "cgroup.subtree_control")]
    tid, what = int(which.split()[0]), which.split()[-1]
    if what == "cpus":
        return sorted(os.sched_getaffinity(tid))
    if what == "class":
        priority = os.sched_getparam(tid).sched_priority
        return [os.sched_getscheduler(tid), priority, os.getpriority(os.PRIO_PROCESS, tid)]
    return re.search("^0::(.*)$", read(f"/proc/{tid}/cgroup"), re.M).group(1)


def snapshot(config):
    """Values of all settings that are read."""
    return {name: look(name) for name in names(config)}


def as_wanted(before, config):
    """The expected snapshot after the policy has been applied."""
    want, after = config["wanted"], dict(before)
    own = f"/teiji/vm-{config['pid']}"
    after["halt_poll"] = str(want["halt_poll_ns"])
    after["group /teiji"] = ["100", "max 100000", "cpu"]
    after[f"group {own}"] = [str(want["weight"]), f"{want['quota_us']} 100000", ""]
    for cpu in cpus(want["latency_cpus"]):
        after[f"latency {cpu}"] = str(want["latency_us"])
    for irq in config["irqs"]:
        after[f"irq {irq}"] = cpus(want["irq_cpus"])
    for name in before:
        if not name.startswith("thread "):
            continue
        if name.endswith(" group"):
            after[name] = own
        kind = "vcpu_cpus" if "/KVM" in name else "worker_cpus" if " vhost-" in name else None
        if kind and name.endswith(" cpus"):
            after[name] = cpus(want[kind])
        if kind and name.endswith(" class"):
            # Workers have a higher priority than vCPUs.
            above = 1 if kind == "worker_cpus" else 0
            after[name] = [os.SCHED_FIFO, want["priority"] + above, 0]
    return after


def differ(one, other):
    """Names of the settings in which two snapshots differ."""
    return sorted(n for n in one.keys() | other.keys() if one.get(n) != other.get(n))


def wrong(found, should):
    return {n: {"is": found.get(n), "should": should.get(n)} for n in differ(found, should)}


class Teiji:
    """Runs teiji to its end or kills it, and measures how long runs take."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.state = config["state"]
        self.times = {}
        self.commands = {
            "apply": ["apply", config["policy"]],
            "rollback": ["rollback"],
            "recover": ["rollback", "--unfinished"],
        }

    def start(self, what):
        command = [self.config["teiji"], *self.commands[what], "--state", self.state]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def works(self, what, process):
        """Whether the process has begun to work: its transaction exists, or, for a recovery, it has the lock."""
        if what == "recover":
            return (read(f"{self.state}/lock") or "").strip() == str(process.pid)
        return os.path.exists(f"{self.state}/transaction")

    def until_it_works(self, what, process):
        """Waits until the process works or has ended; returns how many seconds that took."""
        begun = time.monotonic()
        while not self.works(what, process) and not ended(process):
            if time.monotonic() - begun > PATIENCE_S:
                process.kill()
                raise RuntimeError(f"teiji {what} did not begin: {process.communicate()[0]}")
        return time.monotonic() - begun

    def run(self, what):
        """Runs teiji to its end. Returns exit code and output, and records how long start and work took."""
        process = self.start(what)
        before = self.until_it_works(what, process)
        begun = time.monotonic()
        said = process.communicate(timeout=PATIENCE_S)[0]
        self.times.setdefault(what, []).append((before, time.monotonic() - begun))
        return process.returncode, said

    def usual(self, what):
        """Medians in seconds: until it works, and how long it works."""
        pairs = self.times[what][-9:]
        return tuple(sorted(p[i] for p in pairs)[len(pairs) // 2] for i in (0, 1))

    def kill(self, what, changes=None):
        """Kills teiji at a random moment. Returns its exit code (negative: ended by a signal) and its output.

        `changes` are the settings that change, with their new values. Moving a VM into a group takes most of the time,
        so kills at random times would meet the other settings too rarely."""
        before, work = self.usual(what)
        process = self.start(what)
        aim = self.rng.random()
        if aim < AT_TIME or (aim < AT_TIME + AT_SETTING and not changes):
            self.until_it_works(what, process)
            time.sleep(self.rng.uniform(0, work))
        elif aim < AT_TIME + AT_SETTING:
            name = self.rng.choice(sorted(changes))
            while look(name) != changes[name] and not ended(process):
                pass
            time.sleep(self.rng.uniform(0, work / len(changes)))
        else:
            time.sleep(self.rng.uniform(0, (before + work) * 1.1))
        process.kill()
        said = process.communicate()[0]
        return process.returncode, said

    def journal(self):
        """The state of the transaction: `None` if there is none, else the steps begun and whether it is committed."""
        text = read_raw(f"{self.state}/transaction")
        if text is None:
            return None
        # A last line without a line end is incomplete and does not count.
        lines = [json.loads(line) for line in text.split("\n")[1:-1]]
        return {"begun": sum("do" in line for line in lines), "committed": any("commit" in line for line in lines)}

    def held(self):
        """How many settings teiji holds."""
        return len(json.loads(read(f"{self.state}/held.json") or '{"held":{"settings":[]}}')["held"]["settings"])


def read_raw(path):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return None


def ended(process):
    """Whether the process has ended; it can still be waited for."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def recover(teiji, kills_wanted):
    """Recovers, after killing this many recoveries. Returns how many of these were killed at work, and problems."""
    met, problems = 0, []
    for _ in range(kills_wanted):
        at_work = teiji.journal() is not None
        code, _ = teiji.kill("recover")
        met += at_work and code == -signal.SIGKILL
    code, said = teiji.run("recover")
    if code != 0:
        problems.append(f"rollback --unfinished ended with {code}: {said}")
    if os.path.exists(f"{teiji.state}/transaction"):
        problems.append(f"the recovery left its transaction; it had said {said}")
    return met, problems


def end_with(teiji, original, problems):
    """Rolls back what teiji holds. Returns the settings that are not as they were at first."""
    if teiji.held():
        code, said = teiji.run("rollback")
        if code != 0:
            problems.append(f"rollback ended with {code}: {said}")
    return wrong(snapshot(teiji.config), original)


def kill_round(teiji, what, original, applied):
    """One round: kill, recover, compare. The expected result follows from the journal at the kill."""
    if what == "rollback":
        code, said = teiji.run("apply")
        if code != 0 or differ(snapshot(teiji.config), applied):
            bad = wrong(snapshot(teiji.config), applied)
            return {"hit": None, "survived": True, "begun": None, "problems": [f"apply ended with {code}: {said}"], "wrong": bad}
    from_, to = (original, applied) if what == "apply" else (applied, original)
    code, said = teiji.kill(what, {n: to[n] for n in differ(from_, to) if n in from_ and n in to})
    survived = code != -signal.SIGKILL
    journal, found = teiji.journal(), snapshot(teiji.config)
    away = len(differ(found, from_))
    if survived:
        hit, done = "after", True
        problems = [] if code == 0 else [f"{what} ended with {code}: {said}"]
    elif journal is None:
        # Either nothing has begun, or everything is done and the files are in order.
        done = (teiji.held() > 0) == (what == "apply")
        hit, problems = "after" if done else "before", []
    else:
        # An apply counts once it is committed, a rollback as soon as it is in the journal.
        hit, done, problems = "while", what == "rollback" or journal["committed"], []
    kills = 0
    while teiji.rng.random() < 0.5:
        kills += 1
    met, more = recover(teiji, kills)
    problems += more
    bad = wrong(snapshot(teiji.config), to if done else from_)
    should_hold = done == (what == "apply")
    if (teiji.held() > 0) != should_hold:
        problems.append(f"{teiji.held()} settings are held")
    bad = bad or end_with(teiji, original, problems)
    return {
        "hit": hit,
        "survived": survived,
        "begun": journal["begun"] if journal else None,
        "committed": bool(journal and journal["committed"]),
        "changed": away,
        "of": len(differ(original, applied)),
        "done": done,
        "recovery_kills": met,
        "problems": problems,
        "wrong": bad,
    }


def kills(config, rng):
    teiji = Teiji(config, rng)
    original = snapshot(config)
    applied = as_wanted(original, config)
    # Measures how long each command takes, and checks its result without a kill.
    for _ in range(3):
        for what, should in (("apply", applied), ("recover", applied), ("rollback", original)):
            code, said = teiji.run(what)
            bad = wrong(snapshot(config), should)
            if code != 0 or bad:
                raise RuntimeError(f"teiji {what} ended with {code}: {said}; differs in {bad}")
    killed = {"apply": 0, "rollback": 0}
    for n in range(6 * config["rounds"]):
        what = ("apply", "rollback")[n % 2]
        if killed[what] == config["rounds"]:
            continue
        told = {"round": n, "kind": what, **kill_round(teiji, what, original, applied)}
        print(json.dumps(told), flush=True)
        if told["wrong"]:
            # Later rounds would start from a wrong state.
            break
        killed[what] += not told["survived"]
    print(json.dumps({"usual_s": {what: teiji.usual(what) for what in teiji.times}}), flush=True)


def stand_in(config):
    """A VM that does not run: QEMU with vCPUs that never start. It needs a second or two to start."""
    process = subprocess.Popen(config["stand_in"], stdin=subprocess.DEVNULL)
    begun = time.monotonic()
    while sum("/KVM" in name for name in threads(process.pid).values()) < 2:
        if time.monotonic() - begun > PATIENCE_S or ended(process):
            raise RuntimeError("the stand-in for a VM did not start")
        time.sleep(0.01)
    return process


def vanish_round(teiji, original, kill_teiji):
    """The VM is killed at a random moment of an apply, and teiji too if `kill_teiji` is true."""
    vm = stand_in(teiji.config)
    _, work = teiji.usual("apply")
    process = teiji.start("apply")
    teiji.until_it_works("apply", process)
    # Early, because its threads take a while to end.
    time.sleep(teiji.rng.uniform(0, work / 2))
    vm.kill()
    if kill_teiji:
        time.sleep(teiji.rng.uniform(0, work / 4))
        process.kill()
    said = process.communicate(timeout=PATIENCE_S)[0]
    vm.wait()
    code, problems = process.returncode, []
    committed = teiji.held() > 0 and not os.path.exists(f"{teiji.state}/transaction")
    if code == 0 and not committed:
        problems.append(f"apply ended with 0, but nothing is held: {said}")
    if code > 0 and ("gone" not in said or committed):
        problems.append(f"apply ended with {code}, {committed=}: {said}")
    gone = "gone" in said
    bad = wrong(snapshot(teiji.config), original) if code > 0 else {}
    # The VM's group cannot be removed until the VM has ended; the next command removes it.
    bad = {name: values for name, values in bad.items() if not name.startswith("group /teiji")}
    again, said = teiji.run("recover")
    gone |= "gone" in said
    if again != 0:
        problems.append(f"rollback --unfinished ended with {again}: {said}")
    committed = teiji.held() > 0
    bad = bad or ({} if committed else wrong(snapshot(teiji.config), original))
    if committed:
        again, said = teiji.run("rollback")
        gone |= "gone" in said
        if again != 0 or teiji.held():
            problems.append(f"rollback ended with {again}, {teiji.held()} are held: {said}")
    bad = bad or wrong(snapshot(teiji.config), original)
    return {"code": code, "committed": committed, "said_gone": gone, "problems": problems, "wrong": bad}


def vanish(config, rng):
    config["pid"] = None
    teiji = Teiji(config, rng)
    original = snapshot(config)
    vm = stand_in(config)
    # Measures how long they take, several times: all moments come from the medians.
    for _ in range(5):
        for what in ("apply", "recover", "rollback"):
            code, said = teiji.run(what)
            if code != 0:
                raise RuntimeError(f"teiji {what} ended with {code}: {said}")
    vm.kill()
    vm.wait()
    # Applies that undid themselves, and those that were killed and had to be recovered.
    met = [0, 0]
    for n in range(10 * config["rounds"]):
        too = met[1] < met[0]
        told = {"round": n, "teiji_killed": too, **vanish_round(teiji, original, too)}
        print(json.dumps(told), flush=True)
        # A teiji that was to be killed may have ended before.
        met[told["code"] < 0] += not told["committed"]
        if told["wrong"] or sum(met) == config["rounds"]:
            break


def main():
    with open(sys.argv[1]) as f:
        config = json.load(f)
    rng = random.Random(config["seed"])
    match sys.argv[2]:
        case "snapshot":
            print(json.dumps(snapshot(config)))
        case "kills":
            kills(config, rng)
        case "vanish":
            vanish(config, rng)


main()
