// Google's stand-in for Pub/Sub, which its own libraries are tested with, as a program: pubsub-server -port 8085
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port := flag.Int("port", 8085, "the port, on 127.0.0.1")
	window := flag.Duration("min-ack-deadline", time.Second, "the shortest ack deadline of a subscription")
	flag.Parse()
	pstest.SetMinAckDeadline(*window)
	server := pstest.NewServerWithAddress(fmt.Sprintf("127.0.0.1:%d", *port))
	defer server.Close()
	fmt.Println("listening at", server.Addr)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
