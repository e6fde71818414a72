#!/bin/sh
# Mails a job's owner that the controller has moved or stopped the job, why, and what it means for its end.
#
# Set in the configuration:   [hooks]
#                             moved = "/opt/slurm-hadar/share/slurm_hadar/wrappers/mail_user.sh"
# The controller passes HADAR_JOB_ID, HADAR_USER, HADAR_EVENT (moved or stopped), HADAR_OLD, HADAR_NEW, HADAR_WHY and
# others (docs/operations.md). Settings of the site, in the service's environment (/etc/default/slurm-hadar):
#   HADAR_MAIL_DOMAIN   users are mailed at USER@DOMAIN; empty = USER, which the mail server completes
#   HADAR_MAIL_FROM     the sender; default slurm-hadar
#   HADAR_SENDMAIL      a program that takes the mail on stdin, as "sendmail -t -i" does; empty = SMTP
#   HADAR_SMTP          HOST:PORT of the mail server; default localhost:25. SMTP is the default because the service
#                       may gain no privileges, and so may not start a sendmail that is setgid.
set -eu
: "${HADAR_JOB_ID:?is not set: this script is run by the controller, see docs/operations.md}" "${HADAR_USER:?is not set}"
to=$HADAR_USER${HADAR_MAIL_DOMAIN:+@$HADAR_MAIL_DOMAIN}
from=${HADAR_MAIL_FROM:-slurm-hadar}

clock() { if [ -n "$1" ]; then date -d "@$1" '+%a %d %b %H:%M'; else echo 'not known'; fi; }

say() { printf '%s\n' "$*"; }  # echo reads backslashes in names as its own

compose() {
    say "From: $from"
    say "To: $to"
    say "Subject: job $HADAR_JOB_ID was $HADAR_EVENT"
    say "Auto-Submitted: auto-generated"
    say "MIME-Version: 1.0"
    say "Content-Type: text/plain; charset=utf-8"
    say "Content-Transfer-Encoding: 8bit"
    say
    say "Your job $HADAR_JOB_ID (${HADAR_JOB_NAME:-}) on cluster ${HADAR_CLUSTER:-} was $HADAR_EVENT at $(clock "${HADAR_TIME:-}")."
    say
    say "  from   ${HADAR_OLD:--}"
    if [ "$HADAR_EVENT" = moved ]; then
        say "  to     ${HADAR_NEW:--}"
    else
        say "  to     the queue; it starts again by itself"
    fi
    say "  why    ${HADAR_WHY:-no reason was given}"
    say
    say "Expected end where it was:  $(clock "${HADAR_FINISH_OLD:-}")"
    [ "$HADAR_EVENT" != moved ] || say "Expected end where it is:   $(clock "${HADAR_FINISH_NEW:-}")"
    say
    say "It goes on from its last checkpoint; without one it begins anew. More: hadar history $HADAR_JOB_ID"
}

if [ -n "${HADAR_SENDMAIL:-}" ]; then
    compose | $HADAR_SENDMAIL
    exit
fi
compose | HADAR_TO=$to HADAR_FROM=$from python3 -I -c '
import os, smtplib, sys
host, _, port = os.environ.get("HADAR_SMTP", "localhost:25").rpartition(":")
try:
    with smtplib.SMTP(host, int(port), timeout=30) as server:
        server.sendmail(os.environ["HADAR_FROM"], [os.environ["HADAR_TO"]], sys.stdin.buffer.read())
except (OSError, smtplib.SMTPException, ValueError) as error:
    sys.exit(f"mail_user.sh: {host}:{port} does not take the mail: {error}")
'
