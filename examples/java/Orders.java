import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends one message and receives it, with RocketMQ's own client. */
public class Orders {
    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments.length > 0 ? arguments[0] : "127.0.0.1:9876";

        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        byte[] body = "a green hat".getBytes(StandardCharsets.UTF_8);
        Message message = new Message("orders", "new", "order-1", body);
        System.out.println(producer.send(message).getSendStatus());

        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("audit");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "new || paid");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> System.out.println(new String(m.getBody(), StandardCharsets.UTF_8)));
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean inTime = received.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        System.exit(inTime ? 0 : 1);
    }
}
