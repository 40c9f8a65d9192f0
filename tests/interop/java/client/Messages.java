import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages and results as the JSON of the commands has them. */
final class Messages {
    /** The calls for times of delivery, which only RocketMQ 5 has, by property. */
    private static final Map<String, String> TIMES = Map.of(
        "TIMER_DELAY_SEC", "setDelayTimeSec",
        "TIMER_DELAY_MS", "setDelayTimeMs",
        "TIMER_DELIVER_MS", "setDeliverTimeMs");

    private Messages() {
    }

    static List<Message> of(JSONObject command) {
        List<Message> messages = new ArrayList<>();
        for (Object item : command.getJSONArray("messages")) {
            messages.add(one(command.getString("topic"), (JSONObject) item));
        }
        return messages;
    }

    private static Message one(String topic, JSONObject item) {
        byte[] body = item.getString("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, body);
        if (item.containsKey("tag")) {
            message.setTags(item.getString("tag"));
        }
        if (item.containsKey("keys")) {
            message.setKeys(item.getString("keys"));
        }
        if (item.containsKey("delay")) {
            message.setDelayTimeLevel(item.getIntValue("delay"));
        }
        if (item.containsKey("properties")) {
            item.getJSONObject("properties")
                .forEach((name, value) -> set(message, name, (String) value));
        }
        return message;
    }

    private static void set(Message message, String name, String value) {
        try {
            Message.class.getMethod(TIMES.getOrDefault(name, ""), long.class)
                .invoke(message, Long.valueOf(value));
        } catch (NoSuchMethodException error) {
            message.putUserProperty(name, value);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(name + "=" + value, error);
        }
    }

    static Map<String, Object> result(SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getSendStatus().name());
        line.put("id", result.getMsgId());
        line.put("offset_id", result.getOffsetMsgId());
        line.put("broker", result.getMessageQueue().getBrokerName());
        line.put("queue", result.getMessageQueue().getQueueId());
        line.put("offset", result.getQueueOffset());
        return line;
    }

    static Map<String, Object> received(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        line.put("tag", message.getTags());
        line.put("keys", message.getKeys());
        line.put("properties", message.getProperties());
        line.put("id", message.getMsgId());
        line.put("queue", message.getQueueId());
        line.put("offset", message.getQueueOffset());
        line.put("reconsumed", message.getReconsumeTimes());
        line.put("born_ms", message.getBornTimestamp());
        line.put("stored_ms", message.getStoreTimestamp());
        line.put("now_ms", System.currentTimeMillis());
        return line;
    }
}
