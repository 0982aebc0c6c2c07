# Runs as root inside the new root file system: installs the packages $2... from the suite $1, with whatever of that suite
# they need.
set -eu
suite=$1
shift
know_suite "$suite"
apt-get -q -y install -t "$suite" "$@" >&2 </dev/null
forget_suite
