// The official Go client, driven line by line; see ../programs.py. Argument: the name server.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const wait = 15 * time.Second

type item struct {
	Body       string            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       string            `json:"keys"`
	Delay      int               `json:"delay"`
	Properties map[string]string `json:"properties"`
}

type command struct {
	ID         int    `json:"id"`
	Do         string `json:"do"`
	Name       string `json:"name"`
	Group      string `json:"group"`
	Topic      string `json:"topic"`
	Style      string `json:"style"`
	Shard      string `json:"shard"`
	Mode       string `json:"mode"`
	Expression string `json:"expression"`
	Sql        string `json:"sql"`
	Messages   []item `json:"messages"`
	Count      int    `json:"count"`
	Trace      bool   `json:"trace"`
	Defaults   bool   `json:"defaults"`
}

type object = map[string]any

var (
	namesrv   string
	emitting  sync.Mutex
	producers = map[string]rocketmq.Producer{}
	consumers = map[string]rocketmq.PushConsumer{}
	deciding  = map[string]rocketmq.TransactionProducer{}
)

func main() {
	namesrv = os.Args[1]
	rlog.SetLogLevel("warn")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "not a command:", err)
			os.Exit(2)
		}
		if c.Do == "quit" {
			return
		}
		result, err := run(c)
		if err != nil {
			emit(object{"reply": c.ID, "error": err.Error()})
		} else {
			emit(object{"reply": c.ID, "result": result})
		}
	}
}

func emit(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	emitting.Lock()
	defer emitting.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func run(c command) (any, error) {
	switch c.Do {
	case "send":
		return send(c)
	case "transaction":
		return transaction(c)
	case "consume":
		return nil, consume(c)
	case "pull":
		return pull(c)
	case "stop":
		defer delete(consumers, c.Name)
		return nil, consumers[c.Name].Shutdown()
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func build(topic string, i item) *primitive.Message {
	m := primitive.NewMessage(topic, []byte(i.Body))
	if i.Tag != "" {
		m.WithTag(i.Tag)
	}
	if i.Keys != "" {
		m.WithKeys(strings.Split(i.Keys, " "))
	}
	if i.Delay != 0 {
		m.WithDelayTimeLevel(i.Delay)
	}
	for name, value := range i.Properties {
		m.WithProperty(name, value)
	}
	return m
}

func result(r *primitive.SendResult) object {
	status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[r.Status]
	return object{
		"status": status, "id": r.MsgID, "offset_id": r.OffsetMsgID,
		"queue": r.MessageQueue.QueueId, "offset": r.QueueOffset,
	}
}

func received(m *primitive.MessageExt) object {
	return object{
		"topic": m.Topic, "body": string(m.Body), "tag": m.GetTags(), "keys": m.GetKeys(),
		"properties": m.GetProperties(), "id": m.MsgId, "queue": m.Queue.QueueId,
		"offset": m.QueueOffset, "reconsumed": m.ReconsumeTimes, "born_ms": m.BornTimestamp,
		"stored_ms": m.StoreTimestamp, "now_ms": time.Now().UnixMilli(),
	}
}

// Where traces of messages go: to RocketMQ's trace topic.
func traces() *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName: "traces", Access: primitive.Local, NamesrvAddrs: []string{namesrv},
		Credentials: account(),
	}
}

// Signs all requests; without keys in the environment, none.
func account() primitive.Credentials {
	return primitive.Credentials{
		AccessKey: os.Getenv("CLIENT_ACCESS_KEY"), SecretKey: os.Getenv("CLIENT_SECRET_KEY"),
	}
}

// A producer for each group; ordered ones choose the queue by the sharding key.
func producerOf(c command) (rocketmq.Producer, error) {
	group, ordered := c.Group, c.Style == "ordered"
	key := fmt.Sprint(group, ordered)
	if p := producers[key]; p != nil {
		return p, nil
	}
	options := []producer.Option{
		producer.WithNameServer([]string{namesrv}),
		producer.WithGroupName(group),
		producer.WithInstanceName(key),
		producer.WithCredentials(account()),
	}
	if !c.Defaults {
		options = append(options,
			producer.WithRetry(2),
			producer.WithSendMsgTimeout(8*time.Second),
			producer.WithCompressMsgBodyOverHowmuch(4096),
		)
	}
	if ordered {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if c.Trace {
		options = append(options, producer.WithTrace(traces()))
	}
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	producers[key] = p
	return p, p.Start()
}

func send(c command) (any, error) {
	p, err := producerOf(c)
	if err != nil {
		return nil, err
	}
	messages := make([]*primitive.Message, len(c.Messages))
	for n, i := range c.Messages {
		messages[n] = build(c.Topic, i)
	}
	if c.Style == "batch" {
		r, err := p.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		return []object{result(r)}, nil
	}
	results := []any{}
	for _, m := range messages {
		r, err := sendOne(p, c, m)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

func sendOne(p rocketmq.Producer, c command, m *primitive.Message) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	switch c.Style {
	case "sync":
	case "ordered":
		m.WithShardingKey(c.Shard)
	case "oneway":
		return nil, p.SendOneWay(ctx, m)
	case "async":
		return sendAsync(ctx, p, m)
	default:
		return nil, fmt.Errorf("unknown style %q", c.Style)
	}
	r, err := p.SendSync(ctx, m)
	if err != nil {
		return nil, err
	}
	return result(r), nil
}

func sendAsync(ctx context.Context, p rocketmq.Producer, m *primitive.Message) (any, error) {
	type outcome struct {
		sent *primitive.SendResult
		err  error
	}
	done := make(chan outcome, 1)
	err := p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
		done <- outcome{r, err}
	}, m)
	if err != nil {
		return nil, err
	}
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		return result(o.sent), nil
	case <-time.After(wait):
		return nil, errors.New("an asynchronous send gave no callback")
	}
}

// Half messages whose body says what becomes of them; see ../programs.py.
func transaction(c command) (any, error) {
	p := deciding[c.Group]
	if p == nil {
		made, err := rocketmq.NewTransactionProducer(
			&byBody{},
			producer.WithNameServer([]string{namesrv}),
			producer.WithGroupName(c.Group),
			producer.WithInstanceName(c.Group),
			producer.WithCredentials(account()),
			producer.WithSendMsgTimeout(8*time.Second),
		)
		if err != nil {
			return nil, err
		}
		if err := made.Start(); err != nil {
			return nil, err
		}
		p, deciding[c.Group] = made, made
	}
	results := []any{}
	for _, i := range c.Messages {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		r, err := p.SendMessageInTransaction(ctx, build(c.Topic, i))
		cancel()
		if err != nil {
			return nil, err
		}
		results = append(results, result(r.SendResult))
	}
	return results, nil
}

type byBody struct{ prepared, checked sync.Map }

func (b *byBody) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	body := string(m.Body)
	b.prepared.Store(body, true)
	return stateOf(strings.Split(body, " ")[0])
}

func (b *byBody) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	body := string(m.Body)
	emit(object{"event": "check", "body": body})
	words := strings.Split(body, " ")
	_, wasPrepared := b.prepared.Load(body)
	_, wasChecked := b.checked.LoadOrStore(body, true)
	if words[0] == "twice" && !wasChecked || words[0] == "other" && wasPrepared {
		return primitive.UnknowState
	}
	return stateOf(words[1])
}

func stateOf(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func consume(c command) error {
	options := []consumer.Option{
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.Name),
		consumer.WithCredentials(account()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(c.Mode == "orderly"),
		consumer.WithMaxReconsumeTimes(16),
		consumer.WithSuspendCurrentQueueTimeMillis(500 * time.Millisecond),
		consumer.WithRebalanceLockInterval(500 * time.Millisecond),
	}
	if c.Mode == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if c.Trace {
		options = append(options, consumer.WithTrace(traces()))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.Expression}
	if c.Sql != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: c.Sql}
	}
	if err := made.Subscribe(c.Topic, selector, listener(c)); err != nil {
		return err
	}
	consumers[c.Name] = made
	return made.Start()
}

type listen = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func listener(c command) listen {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		outcome := consumer.ConsumeSuccess
		for _, m := range messages {
			line := received(m)
			line["event"], line["consumer"] = "message", c.Name
			emit(line)
			if strings.HasPrefix(string(m.Body), "retry") && m.ReconsumeTimes == 0 {
				outcome = consumer.ConsumeRetryLater
				if c.Mode == "orderly" {
					outcome = consumer.SuspendCurrentQueueAMoment
				}
			}
		}
		return outcome, nil
	}
}

// All messages of a topic, through the pull consumer: polls until nothing comes any more.
func pull(c command) (any, error) {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(c.Group),
		consumer.WithInstance("pull-"+c.Group),
		consumer.WithCredentials(account()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.Expression}
	if err := made.Subscribe(c.Topic, selector); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	defer made.Shutdown()
	found := []object{}
	deadline := time.Now().Add(60 * time.Second)
	for {
		request, err := made.Poll(context.Background(), 3*time.Second)
		if consumer.IsNoNewMsgError(err) {
			if len(found) >= c.Count || time.Now().After(deadline) {
				return found, nil
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range request.GetMsgList() {
			found = append(found, received(m))
		}
		made.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
}
