#!/usr/bin/env bash
# Installs Kafka, two SQS servers, an AMQP 1.0 library and the SDK of durable functions into .servers; what is there is left
# alone. Called by install.sh; with the argument `next`, by install_next.sh: only the newer Kafka.
set -euo pipefail
cd "$(dirname "$0")/../.."

KAFKA=(org.apache.kafka:kafka_2.13:4.1.0 org.slf4j:slf4j-simple:1.7.36)
KAFKA_NEXT=(org.apache.kafka:kafka_2.13:4.3.1 org.slf4j:slf4j-simple:1.7.36)
ELASTICMQ=(org.elasticmq:elasticmq-server_2.13:1.6.14)
MINISTACK=ministack==1.5.33
DURABLE_FUNCTIONS=(aws-durable-execution-sdk-python==3.0.0 aws-durable-execution-sdk-python-testing==1.4.0 msgspec)
RHEA=rhea@3.0.5
PSTEST=cloud.google.com/go/pubsub/v2/pstest@v2.8.0

again() { # again COMMAND...: up to three times, for a network that stumbles
    local try
    for try in 1 2 3; do
        "$@" && return
        sleep $((try * 3))
    done
    return 1
}

installed() { # installed FOLDER WHAT...: whether exactly that was installed there, completely
    [ "$(cat ".servers/$1/.complete" 2>/dev/null)" = "${*:2}" ]
}

complete() { # complete FOLDER WHAT...
    echo "${*:2}" >".servers/$1/.complete"
}

jars() { # jars FOLDER GROUP:ARTIFACT:VERSION...: those and all that they depend on
    local folder=$PWD/.servers/$1 pom coordinates group artifact version
    ! installed "$@" || return 0
    echo "installing: $2 into .servers/$1"
    rm -rf "$folder"
    pom=$(mktemp -d)
    {
        echo '<project><modelVersion>4.0.0</modelVersion><groupId>servers</groupId><artifactId>servers</artifactId>'
        echo '<version>1</version><packaging>pom</packaging><dependencies>'
        for coordinates in "${@:2}"; do
            IFS=: read -r group artifact version <<<"$coordinates"
            echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
        done
        echo '</dependencies></project>'
    } >"$pom/pom.xml"
    MAVEN_OPTS=-Djansi.mode=strip again mvn --quiet --batch-mode --file "$pom/pom.xml" \
        -Dmaven.repo.local="$PWD/.servers/maven" dependency:copy-dependencies -DoutputDirectory="$folder"
    rm -rf "$pom"
    complete "$@"
}

mkdir -p .servers
if [ "${1:-}" = next ]; then
    jars kafka-next "${KAFKA_NEXT[@]}"
    rm -rf .servers/maven
    exit 0
fi
jars kafka "${KAFKA[@]}"
jars elasticmq "${ELASTICMQ[@]}"
rm -rf .servers/maven

environment() { # environment FOLDER PACKAGE==VERSION...: a virtual environment, for those that want another botocore
    ! installed "$@" || return 0
    echo "installing: $2 into .servers/$1"
    rm -rf ".servers/$1"
    python3 -m venv ".servers/$1"
    again ".servers/$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
    complete "$@"
}

environment ministack "$MINISTACK"
environment durable-functions "${DURABLE_FUNCTIONS[@]}"

if ! installed rhea "$RHEA"; then # a folder of its own: npm removes what it did not install itself
    echo "installing: $RHEA into .servers/rhea"
    again npm install --prefix .servers/rhea --no-audit --no-fund --no-save --no-package-lock --loglevel=error "$RHEA"
    complete rhea "$RHEA"
fi

if ! installed pubsub "$PSTEST"; then # Go's own proxy has it; the program around it is ours
    if command -v go >/dev/null; then
        echo "installing: $PSTEST into .servers/pubsub"
        rm -rf .servers/pubsub
        mkdir -p .servers/pubsub
        cp tests/harness/pubsub.go .servers/pubsub/main.go
        (
            cd .servers/pubsub
            go mod init pubsub-server
            again go get "$PSTEST"
            again go build -o pubsub-server .
        ) >.servers/pubsub.log 2>&1 || { cat .servers/pubsub.log >&2 && exit 1; }
        rm -f .servers/pubsub.log
        complete pubsub "$PSTEST"
    else
        echo "Pub/Sub: go is not installed; get 1.24 or newer, and run make servers again" >&2
    fi
fi
