#!/bin/sh
# Run a command of this project with another release of Slurm: tools/slurm_suite.sh VERSION COMMAND [ARGUMENT...]
#
# VERSION is 22.05, 24.11 or 26.05, each from the Debian suite that packages it. The suite is installed once into a
# folder of the cache (about 600 MB) and entered by chroot, since its libraries need a newer C library than the host
# may have. The Python that runs inside is the host's, with its virtual environment; the checkout stands at the same
# path. Mounts and processes live in namespaces of their own, and are gone when the command ends.
#
# Needs root, Linux, and debootstrap (installed by apt-get where it is missing). HADAR_SUITE_BIND=DIR:DIR shows further
# folders inside, such as one with a pyslurm built for that release. With HADAR_SUITE_FRESH=1 what the command changes
# in the suite lives in memory and is gone with it: for commands that install something.
set -eu

say() { printf 'slurm %s: %s\n' "$version" "$*" >&2; }

version=${1:?usage: tools/slurm_suite.sh VERSION COMMAND [ARGUMENT...]}
shift
[ $# -gt 0 ] || { say "no command given"; exit 2; }
case $version in
    22.05) suite=bookworm script=bookworm ;;
    24.11) suite=trixie script=trixie ;;
    26.05) suite=forky script=sid ;;
    *) say "unknown release; known are 22.05, 24.11 and 26.05"; exit 2 ;;
esac

# 77 is what test runners take for "skipped": nothing was run, and the line says why.
cannot() { say "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || cannot "entering another root folder needs root"
command -v unshare >/dev/null || cannot "unshare is missing (Debian's package util-linux)"
if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null || cannot "debootstrap is missing"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; } ||
        cannot "debootstrap cannot be installed"
fi

here=$(cd "$(dirname "$0")/.." && pwd)
cache=${HADAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/slurm_hadar}/suites
root=$cache/$suite
mirror=${HADAR_DEBIAN:-http://deb.debian.org/debian}

# Slurm with accounting, what the host's Python is linked to, and what tests and templates call.
packages="slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin liblua5.1-0
    mariadb-server-core mariadb-client-core ca-certificates procps util-linux iproute2
    libffi8 libsqlite3-0 libbz2-1.0 liblzma5 zlib1g libexpat1 libncursesw6 libgomp1 libstdc++6"
[ "$suite" = bookworm ] && packages="$packages libreadline8 libssl3" || packages="$packages libreadline8t64 libssl3t64"

# A suite is made beside its place and moved there whole, so that one cut short is never taken for one that is done.
make_suite() {
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new-XXXXXX") && chmod 755 "$new"
    trap 'rm -rf --one-file-system "$new"' EXIT INT TERM
    say "installing Debian $suite into $root (a few minutes, once)"
    debootstrap --variant=minbase "$suite" "$new" "$mirror" "/usr/share/debootstrap/scripts/$script" \
        >"$cache/$suite.log" 2>&1 || { tail -3 "$cache/$suite.log" >&2; cannot "Debian $suite cannot be had"; }
    printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d" # no daemon starts by being installed
    chmod 755 "$new/usr/sbin/policy-rc.d"
    # testing suites have no end date to their lists that a cached mirror would keep
    echo 'Acquire::Check-Valid-Until "false";' >"$new/etc/apt/apt.conf.d/90hadar"
    # libmariadb3 11.8.9 (trixie, forky) lets slurmdbd read no result of a query: "Number of columns in result (=1) set
    # exceeds maximum (=0)", or "null result from query"
    if [ "$suite" != bookworm ]; then
        keys=/usr/share/keyrings/debian-archive-keyring.gpg
        echo "deb [signed-by=$keys] $mirror bookworm main" >"$new/etc/apt/sources.list.d/bookworm.list"
        printf 'Package: %s\nPin: release n=bookworm\nPin-Priority: %s\n\n' libmariadb3 1001 '*' 50 \
            >"$new/etc/apt/preferences.d/bookworm"
    fi
    cp /etc/resolv.conf /etc/hosts "$new/etc/"
    # shellcheck disable=SC2086
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
        unshare --mount --pid --fork --kill-child chroot "$new" sh -c '
            mount -t proc proc /proc && apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" &&
            apt-get clean' sh $packages >>"$cache/$suite.log" 2>&1 ||
        { tail -3 "$cache/$suite.log" >&2; cannot "Slurm of Debian $suite cannot be installed"; }
    mv "$new" "$root"
    trap - EXIT INT TERM
}
[ -d "$root" ] || make_suite

python=$(readlink -f "$here/.venv/bin/python") || cannot "no virtual environment; run make install"
base=$("$python" -c 'import sys; print(sys.base_prefix)')
if [ "$base" = /usr ]; then # the distribution's own: its parts go beside what the suite has in /usr
    binds="$python $("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
else
    binds=$base
fi
venv=$(readlink -f "$here/.venv")
binds="$binds $here $venv $(printf %s "${HADAR_SUITE_BIND:-}" | tr : ' ')"

export root binds here
exec unshare --mount --pid --fork --kill-child --propagation private sh -c '
    set -eu
    show() { # make a path of the host visible at the same place inside
        if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}" && : >>"$root$1"; fi
        mount --rbind "$1" "$root$1"
    }
    if [ "${HADAR_SUITE_FRESH:-}" = 1 ]; then
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/work /mnt/root
        mount -t overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
        root=/mnt/root
    fi
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    for path in $binds; do show "$path"; done
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    exec chroot "$root" /usr/bin/env -C "$here" HOME=/root HADAR_SLURM=system "$@"' sh "$@"
