// Serves a schema registry with Confluent's interface from memory: main HOST:PORT.
package main

import (
	"log"
	"net/http"
	"os"

	"github.com/twmb/franz-go/pkg/sr/srfake"
)

func main() {
	registry := srfake.NewRegistry()
	defer registry.Close()
	log.Fatal(http.ListenAndServe(os.Args[1], registry.Handler()))
}
