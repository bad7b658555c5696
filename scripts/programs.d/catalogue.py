"""The programs: the locks each exercises, its requirements, and how it is run once.

A function here runs its program one time and returns a figure (higher is better) and an outcome (a
text that must be the same in every run on either side), or raises Bad. The figure is the program's
own where it prints one, as the comment on its first line says, and one over wall time where not."""
import getpass
import json
import os
import re
import shlex
import shutil
import socket
from collections import namedtuple

from trial import Bad, found

Program = namedtuple("Program", "name what unit needs short once")
PROGRAMS = []


def program(name, what, unit, needs, short=False):
    """`needs` maps a command (or a file, if it has a slash in it) to its Debian package."""
    def register(once):
        PROGRAMS.append(Program(name, what, unit, needs, short, once))
        return once
    return register


# ---- tools: wall time, and every byte they write ----

@program("sort", "merge threads: mutex, condition", "MB/s", {"sort": "coreutils"}, short=True)
def sort(t):
    seconds, _ = t.run("sort --parallel=4 -S 64M", stdin="../../text", out="sorted")
    return t.path("../../text").stat().st_size / 1e6 / seconds, t.digest("sorted")


def packer(name, package, pack, unpack, short=True):
    @program(name, "worker threads: mutex, condition", "MB/s", {name: package}, short)
    def packs(t):
        there, _ = t.run(pack, stdin="../../binary", out="packed")
        back, _ = t.run(unpack, stdin="packed", out="plain")
        if t.digest("plain") != t.digest("../../binary"):
            raise Bad("unpacks to something else than what was packed")
        return t.path("plain").stat().st_size / 1e6 / (there + back), t.digest("packed")


packer("xz", "xz-utils", "xz -T4 -1 --block-size=1MiB -c", "xz -T4 -dc")
packer("pigz", "pigz", "pigz -p4 -c", "pigz -p4 -dc")
packer("zstd", "zstd", "zstd -T4 -6 -q -c", "zstd -q -dc")
packer("pbzip2", "pbzip2", "pbzip2 -p4 -c", "pbzip2 -p4 -dc", short=False)


@program("git", "grep, repack, index-pack", "1/s", {"git": "git"}, short=True)
def git(t):  # a pack made by four threads differs from run to run; the objects in it do not
    for role in ("AUTHOR", "COMMITTER"):
        t.env |= {f"GIT_{role}_NAME": "A", f"GIT_{role}_EMAIL": "a@example.org",
                  f"GIT_{role}_DATE": "1700000000 +0000"}
    t.env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    t.once(lambda: git_repository(t))
    shutil.copytree(t.path("../base/repo"), t.path("repo"))
    grep, hits = t.run("git -C repo grep --threads=4 -c -e [a-z]*ing")
    repack, _ = t.run("git -C repo -c pack.threads=4 repack -adfq")
    index, pack = t.run("git index-pack --threads=4 -o all.idx ../base/all.pack")
    t.run("git -C repo fsck --full", ours=False)
    objects = t.run("git -C repo cat-file --batch-check --batch-all-objects", ours=False)[1]
    return 1 / (grep + repack + index), t.digest("all.idx", hits, pack, objects)


def git_repository(t):
    """Three versions of some hundreds of files, and one pack of it all."""
    t.run("git init -q repo")
    text, size = t.path("../../text").read_bytes()[:16 << 20], 32768
    for version in range(3):
        for n in range(0, len(text) // size, version + 1):
            piece = text[n * size:(n + 1) * size]
            t.path(f"repo/{n}").write_bytes(piece[version * 999:] + piece[:version * 999])
        t.run("git -C repo add .")
        t.run(f"git -C repo commit -q -m version{version}")
    t.run("git -C repo -c pack.threads=1 repack -adfq")
    shutil.copy(*t.path("repo/.git/objects/pack").glob("*.pack"), t.path("all.pack"))


# ---- contended mutexes ----

@program("sysbench-threads", "16 threads, 1 mutex, 80 % waits", "event/s",
         {"sysbench": "sysbench"}, short=True)
def sysbench_threads(t):  # its own events and time
    _, said = t.run("sysbench threads --threads=16 --thread-locks=1"
                    f" --time={2 if t.short else 5} run")
    return found(r"number of events: +(\d+)", said) / found(r"total time: +([\d.]+)s", said), "ends"


@program("sysbench-mutex", "4 threads, 4 mutexes", "lock/s", {"sysbench": "sysbench"})
def sysbench_mutex(t):  # its own time
    _, said = t.run("sysbench mutex --threads=4 --mutex-num=4 --mutex-locks=100000 --time=0 run")
    events = found(r"number of events: +(\d+)", said)
    return events * 100_000 / found(r"total time: +([\d.]+)s", said), f"{events:.0f} events"


@program("cache_bench", "RocksDB LRU cache, one mutex", "op/s",
         {"cache_bench": "rocksdb-tools"}, short=True)
def cache_bench(t):  # its own throughput
    _, said = t.run("cache_bench --threads=4 --num_shard_bits=0 --cache_size=67108864"
                    f" --ops_per_thread={100_000 if t.short else 500_000}")
    return found(r"Rough parallel ops/sec = (\d+)", said), "completes"


@program("db_bench", "RocksDB reads, one cache mutex", "op/s", {"db_bench": "rocksdb-tools"})
def db_bench(t):  # its own throughput
    t.once(lambda: t.run("db_bench --db=db --benchmarks=fillseq,compact --num=300000 --seed=7"
                         " --compression_type=none"))
    shutil.copytree(t.path("../base/db"), t.path("db"))
    _, said = t.run("db_bench --db=db --benchmarks=readrandom --use_existing_db=1 --num=300000"
                    " --seed=7 --reads=150000 --threads=4 --cache_numshardbits=0"
                    " --cache_size=8388608")
    keys = found(r"\((\d+) of \d+ found", said)
    return found(r"^readrandom .* (\d+) ops/sec", said), f"{keys:.0f} found"


# ---- reader-writer locks, recursive mutexes, mutexes without contention ----

def kyoto(name, manager, file, count):
    @program(name, "Kyoto Cabinet: rwlocks and mutexes", "op/s",
             {name: "kyotocabinet-utils"}, short=True)
    def order(t):  # its own times of three phases: set, get, remove
        n = count // 5 if t.short else count
        _, said = t.run(f"{name} order -th 4 -rnd {file} {n}")
        phases = re.findall(r"ing records:.*?^time: ([\d.]+)", said, re.M | re.S)
        if len(phases) != 3 or not said.endswith("\nok\n\n"):
            raise Bad("does not end with 'ok'")
        t.run(f"{manager} check {file}", ours=False)
        return 3 * 4 * n / sum(map(float, phases)), "ok, and the file is sound"


kyoto("kctreetest", "kctreemgr", "f.kct", 100_000)
kyoto("kchashtest", "kchashmgr", "f.kch", 200_000)


@program("tchmttest", "Tokyo Cabinet: recursive mutexes", "op/s", {"tchmttest": "tokyocabinet-bin"})
def tchmttest(t):  # its own time
    _, said = t.run("tchmttest wicked f.tch 4 20000")
    if not said.endswith("\nok\n\n"):
        raise Bad("does not end with 'ok'")
    return 4 * 20_000 / found(r"^time: ([\d.]+)", said), "ok"


@program("gm", "pixel cache: uncontended mutexes", "iter/s", {"gm": "graphicsmagick"})
def graphicsmagick(t):  # its own iterations per second
    t.run("gm convert -size 512x512 gradient:red-blue -blur 0x1 rgb:-", out="picture")
    job = t.start("gm benchmark -iterations 5 convert -size 768x768 plasma: -blur 0x1 null:")
    t.finish(job)
    return found(r"([\d.]+) iter/s", job.complained.read_text()), t.digest("picture")


@program("node", "pbkdf2, 4 threads: rwlocks", "hash/s", {"node": "nodejs"})
def node(t):  # its own clock
    t.path("hash.js").write_text("""
        const c = require('crypto'), n = 800, t0 = performance.now(), out = []; let done = 0
        for (let i = 0; i < n; i++) c.pbkdf2('p' + i, 'salt', 2000, 64, 'sha512', (e, key) => {
            out[i] = key.toString('hex')
            if (++done === n) console.log(n * 1000 / (performance.now() - t0),
                c.createHash('sha256').update(out.join()).digest('hex').slice(0, 16)) })""")
    rate, digest = t.run("node hash.js")[1].split()
    return float(rate), digest


# ---- servers ----

MEMASLAP = "memaslap" if shutil.which("memaslap") else "memcaslap"  # renamed in Debian 12


@program("memcached", "event threads, thousands of locks", "op/s",
         {"memcached": "memcached", MEMASLAP: "libmemcached-tools"})
def memcached(t):  # the throughput its client sees; the client checks a fifth of what it reads
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = t.start(f"memcached -u {getpass.getuser()} -t 4 -l 127.0.0.1 -p {port} -U 0")
    t.until(lambda: listens(port), server)
    _, said = t.run(f"{MEMASLAP} -s 127.0.0.1:{port} -T 2 -c 32 -v 0.2 -t 3s", ours=False)
    server.terminate()
    t.finish(server)
    wrong = re.findall(r"^(?:get_misses|verify_misses|verify_failed): \d+", said, re.M)
    return found(r"TPS: (\d+)", said), ", ".join([*wrong, "clean end"])


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@program("mariadb", "8 clients: adaptive mutexes, conds", "trans/s",
         {"mariadbd": "mariadb-server-core", "mariadb-install-db": "mariadb-server-core",
          "mariadb": "mariadb-client", "mariadb-admin": "mariadb-client",
          "sysbench": "sysbench"})
def mariadb(t):  # the throughput its client sees, of a random load; a fixed one is compared
    options = f"--no-defaults --user={getpass.getuser()} --innodb-log-file-size=16M --datadir="
    t.once(lambda: t.run(f"mariadb-install-db {options}{shlex.quote(str(t.path('data')))}"
                         " --auth-root-authentication-method=normal"))
    shutil.copytree(t.path("../base/data"), t.path("data"))
    server = t.start(f"mariadbd {options}{shlex.quote(str(t.path('data')))} --socket=sock"
                     " --skip-networking --innodb-buffer-pool-size=64M")
    login = "--no-defaults -uroot -S data/sock"
    t.until(lambda: t.path("data/sock").exists(), server)

    def query(sql):
        return t.run(f"mariadb {login} -BN -e '{sql}'", ours=False)[1]

    def bench(verb):
        return t.run("sysbench oltp_read_write --db-driver=mysql --mysql-socket=data/sock"
                     " --mysql-user=root --mysql-db=sbtest --tables=4 --table-size=5000"
                     f" --rand-seed=7 {verb}", ours=False)[1]

    query("create database sbtest; use sbtest; create table fixed (id int primary key, word text);"
          " create table sum (n int); insert into sum values (0)")
    clients = [f"mariadb {login} sbtest -e '{fixed_load(n)}'" for n in range(8)]
    for job in [t.start(client, ours=False) for client in clients]:
        t.finish(job)
    result = query("use sbtest; checksum table fixed; select n from sum")
    bench("prepare")
    said = bench("--threads=8 --time=0 --events=3000 run")
    done = found(r"transactions: +(\d+)", said)
    result += query("check table sbtest.sbtest1, sbtest.sbtest2, sbtest.sbtest3, sbtest.sbtest4")
    t.run(f"mariadb-admin {login} shutdown", ours=False)
    t.finish(server)
    if "Shutdown complete" not in server.complained.read_text(errors="replace"):
        raise Bad("mariadbd does not say 'Shutdown complete'")
    told = " ".join(f"{result} {done:.0f} transactions".split())
    return found(r"transactions:.*\(([\d.]+) per sec", said), told


def fixed_load(client):
    """Statements of one client of eight: rows of its own, and a sum they all add to."""
    return "".join(f"insert into fixed values ({row}, md5({row})); update sum set n = n + {row};"
                   for row in range(client, 2000, 8))


# ---- process-shared and robust objects, which stay with glibc ----

def fio(name, how):
    @program(name, "process-shared, verified writes", "op/s", {"fio": "fio"}, short=True)
    def writes(t):  # its own count of operations, over wall time: it writes, then reads it all back
        seconds, said = t.run(f"fio --name=a {how} --numjobs=4 --rw=randwrite --bs=4k --randseed=7"
                              f" --size={8 if t.short else 32}M --ioengine=psync --directory=."
                              " --verify=crc32c --do_verify=1 --group_reporting"
                              " --output-format=json")
        job, = json.loads(said)["jobs"]
        written, read = job["write"]["total_ios"], job["read"]["total_ios"]
        return (written + read) / seconds, f"error {job['error']}, {written} written, {read} read"


fio("fio-threads", "--thread")
fio("fio-processes", "")


def pair(t, command):
    """One process of ours and one with glibc's locks, at once; the wall time of the slower."""
    return max([t.finish(job)[0] for job in [t.start(command), t.start(command, ours=False)]])


def counted(t, command, expected):
    total = int(t.run(command, ours=False)[1])
    if total != expected:
        raise Bad(f"counts to {total} instead of {expected}")
    return f"counts to {total}"


@program("lmdb", "robust mutex, ours beside glibc", "op/s",
         {"cc": "gcc", "/usr/include/lmdb.h": "liblmdb-dev"}, short=True)
def lmdb(t):  # on either side a writer also dies, and the other side must recover the lock
    t.once(lambda: t.cc("lmdb_pair.c", "-llmdb"))
    n = 20_000 if t.short else 100_000
    seconds = pair(t, f"../base/lmdb_pair . {n}")
    for ours in (True, False):
        t.run("../base/lmdb_pair . -1", ours=ours, expect=(-9, 128 + 9))
        t.run("../base/lmdb_pair . 10", ours=not ours)
    return 2 * n / seconds, counted(t, "../base/lmdb_pair . 0", 2 * n + 20)


@program("bdb", "lock manager, ours beside glibc", "op/s",
         {"cc": "gcc", "/usr/include/db.h": "libdb5.3-dev"}, short=True)
def bdb(t):
    t.once(lambda: t.cc("bdb_pair.c", "-ldb"))
    n = 20_000 if t.short else 100_000
    t.run("../base/bdb_pair . 0")
    seconds = pair(t, f"../base/bdb_pair . {n}")
    return 2 * n / seconds, counted(t, "../base/bdb_pair . 0", 2 * n)
