import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Every way the client has to send, one producer per group. */
final class Producers {
    private static final long WAIT_SECONDS = 15;

    private final String namesrv;
    private final Map<String, DefaultMQProducer> started = new HashMap<>();

    Producers(String namesrv) {
        this.namesrv = namesrv;
    }

    Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = command.getBooleanValue("defaults")
            ? unchanged(command)
            : producer(command.getString("group"), command.getBooleanValue("trace"));
        List<Message> messages = Messages.of(command);
        if ("batch".equals(command.getString("style"))) {
            return Arrays.asList(Messages.result(producer.send(messages)));
        }
        List<Object> results = new ArrayList<>();
        for (Message message : messages) {
            results.add(sendOne(producer, command, message));
        }
        return results;
    }

    private Object sendOne(DefaultMQProducer producer, JSONObject command, Message message)
            throws Exception {
        switch (command.getString("style")) {
            case "sync":
                return Messages.result(producer.send(message));
            case "async":
                return Messages.result(sendAsync(producer, message));
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "ordered":
                return Messages.result(producer.send(
                    message, new SelectMessageQueueByHash(), command.getString("shard")));
            default:
                throw new IllegalArgumentException("unknown style " + command);
        }
    }

    private static SendResult sendAsync(DefaultMQProducer producer, Message message)
            throws Exception {
        CompletableFuture<SendResult> done = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                done.completeExceptionally(error);
            }
        });
        return done.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    /** Half messages whose body says what becomes of them; see ../../programs.py. */
    Object transaction(JSONObject command) throws Exception {
        String group = command.getString("group");
        TransactionMQProducer producer = (TransactionMQProducer) started.get(group);
        if (producer == null) {
            producer = new TransactionMQProducer(group, Signing.hook());
            producer.setTransactionListener(new ByBody());
            start(producer);
        }
        List<Object> results = new ArrayList<>();
        for (Message message : Messages.of(command)) {
            results.add(Messages.result(producer.sendMessageInTransaction(message, null)));
        }
        return results;
    }

    private static final class ByBody implements TransactionListener {
        private final Set<String> prepared = ConcurrentHashMap.newKeySet();
        private final Set<String> checked = ConcurrentHashMap.newKeySet();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            prepared.add(body);
            return stateOf(body.split(" ")[0]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            Map<String, Object> line = new HashMap<>();
            line.put("event", "check");
            line.put("body", body);
            Client.emit(line);
            String[] words = body.split(" ");
            boolean isFirst = checked.add(body);
            if ("twice".equals(words[0]) && isFirst
                    || "other".equals(words[0]) && prepared.contains(body)) {
                return LocalTransactionState.UNKNOW;
            }
            return stateOf(words[1]);
        }

        private static LocalTransactionState stateOf(String word) {
            switch (word) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                default: return LocalTransactionState.UNKNOW;
            }
        }
    }

    /** Asks and waits for the reply. The callback may come once with null before the reply does. */
    Object request(JSONObject command) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        DefaultMQProducer producer = producer(command.getString("group"));
        producer.request(Messages.of(command).get(0), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        }, TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
        return new String(reply.get(WAIT_SECONDS, TimeUnit.SECONDS).getBody());
    }

    /** Sends one message with a time of delivery, and recalls it; only RocketMQ 5 has the calls. */
    Object recall(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command.getString("group"));
        Message message = Messages.of(command).get(0);
        SendResult sent = producer.send(message);
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
        return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, message.getTopic(), handle);
    }

    /** Messages by key, or the one message of an id. */
    Object query(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command.getString("group"));
        String topic = command.getString("topic");
        List<Object> found = new ArrayList<>();
        if (command.containsKey("message_id")) {
            found.add(Messages.received(
                producer.viewMessage(topic, command.getString("message_id"))));
            return found;
        }
        long now = System.currentTimeMillis();
        for (MessageExt message : producer.queryMessage(
                topic, command.getString("key"), 32, now - 3_600_000L, now + 60_000L)
                .getMessageList()) {
            found.add(Messages.received(message));
        }
        return found;
    }

    private DefaultMQProducer producer(String group) throws Exception {
        return producer(group, false);
    }

    private DefaultMQProducer producer(String group, boolean traced) throws Exception {
        DefaultMQProducer producer = started.get(group);
        return producer != null ? producer
            : start(new DefaultMQProducer(group, Signing.hook(), traced, null));
    }

    /** A producer with the settings of the library, or another interval for routes. */
    private DefaultMQProducer unchanged(JSONObject command) throws Exception {
        DefaultMQProducer producer = started.get(command.getString("group"));
        if (producer == null) {
            producer = new DefaultMQProducer(command.getString("group"));
            producer.setNamesrvAddr(namesrv);
            if (command.containsKey("poll_ms")) {
                producer.setPollNameServerInterval(command.getIntValue("poll_ms"));
            }
            producer.start();
            started.put(producer.getProducerGroup(), producer);
        }
        return producer;
    }

    private DefaultMQProducer start(DefaultMQProducer producer) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setVipChannelEnabled(false);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setSendMsgTimeout(8000);
        producer.setCompressMsgBodyOverHowmuch(4096);
        producer.start();
        started.put(producer.getProducerGroup(), producer);
        return producer;
    }

    void close() {
        started.values().forEach(DefaultMQProducer::shutdown);
    }
}
