import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client for gRPC. Arguments: the address, and whether it speaks TLS. */
public class GrpcClient {
    static final CountDownLatch pushed = new CountDownLatch(7);
    static final CountDownLatch checked = new CountDownLatch(1);

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    static void print(String text) {
        synchronized (System.out) {
            System.out.println(text);
        }
    }

    static ConsumeResult handle(MessageView message) {
        String body = body(message);
        print("push " + message.getTopic() + " " + body + " " + message.getTag().orElse("-") + " "
                + String.join(",", message.getKeys()) + " " + new TreeMap<>(message.getProperties()) + " "
                + message.getMessageGroup().orElse("-") + " " + message.getDeliveryAttempt());
        pushed.countDown();
        boolean again = body.equals("again") && message.getDeliveryAttempt() < 2;
        return again ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
                .setEndpoints(arguments[0])
                .enableSsl(Boolean.parseBoolean(arguments[1]))
                .build();
        FilterExpression tags = new FilterExpression("a || b", FilterExpressionType.TAG);
        provider.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup("java-push")
                .setSubscriptionExpressions(Map.of(
                        "normal", tags, "fifo", FilterExpression.SUB_ALL, "late", FilterExpression.SUB_ALL))
                .setMessageListener(GrpcClient::handle)
                .build();
        SimpleConsumer simple = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup("java-simple")
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of("half", FilterExpression.SUB_ALL))
                .build();
        Producer producer = provider.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics("normal", "fifo", "late", "half")
                .setTransactionChecker(message -> {
                    checked.countDown();
                    return TransactionResolution.COMMIT;
                })
                .build();
        producer.send(provider.newMessageBuilder().setTopic("normal").setTag("a").setKeys("k1", "k2")
                .addProperty("shop", "Bern").setBody("one".getBytes()).build());
        producer.send(provider.newMessageBuilder().setTopic("normal").setTag("c").setBody("other".getBytes()).build());
        producer.send(provider.newMessageBuilder().setTopic("normal").setTag("b").setBody("again".getBytes()).build());
        for (int number = 0; number < 3; number++) {
            producer.send(provider.newMessageBuilder().setTopic("fifo").setMessageGroup("g")
                    .setBody(("f" + number).getBytes()).build());
        }
        producer.send(provider.newMessageBuilder().setTopic("late")
                .setDeliveryTimestamp(System.currentTimeMillis() + 1000).setBody("late".getBytes()).build());
        Transaction transaction = producer.beginTransaction();
        producer.send(provider.newMessageBuilder().setTopic("half").setBody("committed".getBytes()).build(), transaction);
        transaction.commit();
        transaction = producer.beginTransaction();
        producer.send(provider.newMessageBuilder().setTopic("half").setBody("dropped".getBytes()).build(), transaction);
        transaction.rollback();
        transaction = producer.beginTransaction();
        producer.send(provider.newMessageBuilder().setTopic("half").setBody("checked".getBytes()).build(), transaction);
        for (int left = 2; left > 0;) {
            List<MessageView> found = simple.receive(16, Duration.ofSeconds(30));
            for (MessageView message : found) {
                simple.changeInvisibleDuration(message, Duration.ofSeconds(60));
                simple.ack(message);
                print("simple " + message.getTopic() + " " + body(message));
                left--;
            }
        }
        print("checked " + checked.await(30, TimeUnit.SECONDS));
        print("pushed " + pushed.await(30, TimeUnit.SECONDS));
        simple.close();
        producer.close();
        Runtime.getRuntime().halt(0); // to close the push consumer waits for its last receive, for 20 s
    }
}
